"""A backend that accepts everything and computes nothing: every value is zero.

It shows the least that a backend has to do, and it lets the cost of tracing be seen without the cost of computing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchport.backend.capabilities import Capabilities
from torchport.backend.computation import Computation
from torchport.backend.data import BackendData
from torchport.backend.delegate import Payload, PyTorchBackendInterface
from torchport.backend.device import BackendDevice, BackendDeviceType
from torchport.backend.interface import BackendImplInterface
from torchport.ir.parser import parse_graph
from torchport.ir.shape import Shape

NULL = BackendDeviceType("NULL")
"""Hardware that holds no values."""
_CPU = BackendDeviceType("CPU")
_SCALAR_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class NullHandle:
    """What stands where a value would be."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NullHandle()"


_HANDLE = NullHandle()


class NullDelegate(PyTorchBackendInterface):
    """Runs nothing: its results are zeros of the graph's shapes."""

    def compile(self, processed: Mapping[str, Payload], method_compile_spec: Mapping[str, Any]) -> dict[str, Any]:
        """The results' shapes."""
        return {name: [v.shape for v in parse_graph(bytes(t).decode()).results] for name, t in processed.items()}

    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        """Zeros."""
        return [torch.zeros(shape.sizes, dtype=shape.dtype) for shape in handle]


class NullBackend(BackendImplInterface):
    """Keeps shapes, drops values.

    Args:
        device_count: how many devices it claims to have.
    """

    # All but what needs values: sizes that depend on them, and eager's random numbers.
    capabilities = Capabilities(
        input_output_aliasing=True,
        random=True,
        random_state=True,
        error_recovery=True,
        training=True,
    )

    def __init__(self, device_count: int = 1) -> None:
        self._devices = [BackendDevice(NULL, i) for i in range(device_count)]
        self._ordinal = 0

    def delegate(self) -> PyTorchBackendInterface | None:
        """One that computes nothing; none of a subclass that computes, whose modules would be zeros."""
        computes = type(self).execute_computation is not NullBackend.execute_computation
        return None if computes else NullDelegate()

    def get_rng_state(self) -> torch.Tensor:
        """Empty: nothing is drawn."""
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Accepts any state."""
        return

    def compile(self, instances: list[Computation]) -> list[Computation]:
        """The computations as they are."""
        return instances

    def execute_computation(
        self, computation: Computation, arguments: list[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        """Data of the results' shapes, without values."""
        return [BackendData(device, shape, _HANDLE) for shape in computation.result_shape]

    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        """Data of that shape; the tensor's values are dropped."""
        return BackendData(device, shape, _HANDLE)

    def make_computation_data_from_scalar(
        self, scalar: bool | int | float | complex, device: BackendDevice
    ) -> BackendData:
        """Data for one number, which is dropped."""
        return BackendData(device, Shape(_SCALAR_DTYPES[type(scalar)], ()), _HANDLE)

    def make_tensor_from_computation_data(
        self, data: BackendData, logical_scalar_type: torch.dtype | None = None
    ) -> torch.Tensor:
        """Zeros in the data's layout."""
        shape = data.shape
        storage = torch.zeros(shape.storage_numel, dtype=logical_scalar_type or shape.dtype)
        return storage.as_strided(shape.sizes, shape.strides)

    def get_default_device_type(self) -> BackendDeviceType:
        """``NULL``."""
        return NULL

    def set_default_device_type(self, type: BackendDeviceType) -> None:
        """Accepts ``NULL``."""
        if type != NULL:
            raise ValueError(f"set_default_device_type({type}): the null backend has {NULL} only")

    def get_default_device_ordinal(self) -> int:
        """Which of its devices is the default."""
        return self._ordinal

    def set_default_device_ordinal(self, ordinal: int) -> None:
        """Chooses the default device."""
        if not 0 <= ordinal < len(self._devices):
            raise ValueError(
                f"set_default_device_ordinal({ordinal}): the null backend has {len(self._devices)} device(s): "
                f"{', '.join(map(str, self._devices))}"
            )
        self._ordinal = ordinal

    def eager_fallback_device_type(self) -> BackendDeviceType:
        """The CPU."""
        return _CPU

    def get_backend_devices(self) -> list[BackendDevice]:
        """As many as were asked for."""
        return list(self._devices)

    def get_backend_device(self, device: torch.device) -> BackendDevice:
        """The device of that index; the default one for a device without an index."""
        index = self._ordinal if device.index is None else device.index
        if index >= len(self._devices):
            raise ValueError(f"there is no {device}: the null backend has {len(self._devices)} device(s)")
        return self._devices[index]
