"""THE CONTRACT, first half: what a backend implements to stand behind the lazy device.

The methods are those of ``torch/csrc/lazy/backend/backend_interface.h`` in Python's spelling. The runtime calls them
under these laws:

- one computation at a time runs per device, in the order of launching, on a thread of the runtime;
- data is immutable once assigned, except through an alias set up in the lowering context;
- no method keeps a reference to a host tensor that it was given, or returns one that it will write to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchport.backend.capabilities import Capabilities, Support
from torchport.backend.computation import Computation
from torchport.backend.data import BackendData
from torchport.backend.delegate import PyTorchBackendInterface
from torchport.backend.device import BackendDevice, BackendDeviceType
from torchport.backend.lowering_context import LoweringContext
from torchport.ir.builder import IrBuilder
from torchport.ir.node import Node
from torchport.ir.shape import Shape

if TYPE_CHECKING:
    from torchport.backend.lazy_tensor import LazyTensor

_BUILDER = IrBuilder()


class BackendImplInterface(ABC):
    """One backend. Abstract methods must be written; the others have defaults that do the usual thing."""

    capabilities: Capabilities = Capabilities()

    # -- life cycle ---------------------------------------------------------------------------------------------

    def initialize_aten_bindings(self) -> None:
        """Called once, when the backend is first activated: register custom operators or kernels here."""
        return

    def prepare_to_exit(self) -> None:
        """Called at interpreter exit, and each time another backend takes over. All launched work has ended.

        Free what you hold; the same object is used again when it is activated again.
        """
        return

    def set_rng_seed(self, seed: int) -> None:
        """``torch.manual_seed(seed)`` was called; the device's generator starts again from ``seed``."""
        return

    def get_rng_state(self) -> torch.Tensor:
        """The state of the device's generator, a byte tensor on the CPU (with ``Capabilities.random_state``).

        Raises:
            NotImplementedError: this backend has no such state.
        """
        raise NotImplementedError(f"{type(self).__name__} declares no Capabilities.random_state")

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Restores a state that :meth:`get_rng_state` returned (with ``Capabilities.random_state``).

        Raises:
            NotImplementedError: this backend has no such state.
        """
        raise NotImplementedError(f"{type(self).__name__} declares no Capabilities.random_state")

    # -- IR and lowering ----------------------------------------------------------------------------------------

    def get_ir_builder(self) -> IrBuilder:
        """The factory of nodes; return a subclass to see or change what is traced."""
        return _BUILDER

    def supports(self, node: Node) -> Support:
        """Whether this backend runs the node. Asked once per call; what it refuses runs eagerly."""
        return Support(True)

    def create_lowering_context(
        self,
        name: str,
        device: BackendDevice,
        post_order: Sequence[Node] = (),
        emission_map: dict[Node, Any] | None = None,
    ) -> LoweringContext:
        """A lowering context over nodes in order, or an empty one to be fed node by node."""
        return LoweringContext(name, device, post_order, emission_map)

    def get_compilation_devices(self, device: BackendDevice, devices: Sequence[BackendDevice]) -> list[BackendDevice]:
        """The devices that one compiled program spans: ``devices`` where given, else just ``device``."""
        return list(devices) or [device]

    @abstractmethod
    def compile(self, instances: list[Computation]) -> list[Computation]:
        """Compiles lowered computations; the result has the same length and order."""

    def serialize_computation(self, computation: Computation) -> bytes:
        """A compiled computation as bytes, for the compile cache on disk (with ``Capabilities.serialization``).

        Raises:
            NotImplementedError: this backend, or this computation, has no such form.
        """
        raise NotImplementedError(f"{type(self).__name__} declares no Capabilities.serialization")

    def deserialize_computation(self, payload: bytes, computation: Computation) -> Computation:
        """The compiled computation that :meth:`serialize_computation` turned into these bytes.

        Args:
            payload: the bytes; they may come from an earlier process.
            computation: as it was lowered in this process; equal to the one that was compiled then.

        Raises:
            ValueError: the bytes are not of this computation, or of another version; it is compiled then.
            NotImplementedError: this backend has no such form.
        """
        raise NotImplementedError(f"{type(self).__name__} declares no Capabilities.serialization")

    def cache_key(self) -> str:
        """What compiled computations depend on besides graph and device: versions and options, as text."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @abstractmethod
    def execute_computation(
        self, computation: Computation, arguments: list[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        """Runs a compiled computation: data for ``computation.parameter_shapes`` in, one per result out."""

    # -- data ---------------------------------------------------------------------------------------------------

    def should_sync_tensor(self, tensor: LazyTensor) -> bool:
        """Whether a live tensor is materialised at a barrier. What is not stays pending, and is computed when read."""
        return True

    @abstractmethod
    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        """Host tensor → data on the device. The tensor is the caller's: copy it."""

    @abstractmethod
    def make_computation_data_from_scalar(
        self, scalar: bool | int | float | complex, device: BackendDevice
    ) -> BackendData:
        """Python number → data on the device (for the number parameters of a computation)."""

    def create_data_placeholder(self, device: BackendDevice, shape: Shape) -> BackendData:
        """Data with a shape and no value yet; it is assigned when an asynchronous execution ends."""
        return BackendData(device, shape)

    def get_computation_data_from_node(self, node: Node) -> BackendData | None:
        """The data of a device-data node, ``None`` for every other node."""
        data: BackendData | None = node.data
        return data if node.is_device_data else None

    @abstractmethod
    def make_tensor_from_computation_data(
        self, data: BackendData, logical_scalar_type: torch.dtype | None = None
    ) -> torch.Tensor:
        """Data → a host tensor of the caller's own; converted when the logical dtype differs from the stored one."""

    # -- devices ------------------------------------------------------------------------------------------------

    @abstractmethod
    def get_default_device_type(self) -> BackendDeviceType:
        """The hardware behind the virtual device."""

    @abstractmethod
    def set_default_device_type(self, type: BackendDeviceType) -> None:
        """Chooses the hardware behind the virtual device.

        Raises:
            ValueError: this backend has no such hardware here; the message lists what it has.
        """

    @abstractmethod
    def get_default_device_ordinal(self) -> int:
        """Which of several devices of the default type."""

    @abstractmethod
    def set_default_device_ordinal(self, ordinal: int) -> None:
        """Chooses which of several devices of the default type.

        Raises:
            ValueError: there is no device of that ordinal.
        """

    @abstractmethod
    def eager_fallback_device_type(self) -> BackendDeviceType:
        """Where an operator that this backend lacks is run eagerly."""

    @abstractmethod
    def get_backend_devices(self) -> list[BackendDevice]:
        """All devices that this backend can use now."""

    @abstractmethod
    def get_backend_device(self, device: torch.device) -> BackendDevice:
        """The concrete device behind a virtual one."""

    # -- the second door ----------------------------------------------------------------------------------------

    def delegate(self) -> PyTorchBackendInterface | None:
        """What lowers modules ahead of time with this backend; ``None`` when it runs the lazy device only."""
        return None

    # -- looking inside -----------------------------------------------------------------------------------------

    def create_metric_report(self) -> str:
        """The backend's own lines of the metrics report."""
        return ""

    def get_metrics(self) -> Mapping[str, float]:
        """The backend's own figures.

        Three have a meaning to others, where they are there: ``bytes_held`` by data now, and ``bytes_free`` and
        ``bytes_total`` of the default device's memory.
        """
        return {}

    def get_computation_backend_text(self, computation: Computation) -> str:
        """What the backend made of the graph, as text: its IR, its assembly."""
        return computation.text
