"""A backend that wraps another one and writes down how it is called. For tests, and for authors who want to see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchport.backend.availability import Availability
from torchport.backend.capabilities import Support
from torchport.backend.computation import Computation
from torchport.backend.data import BackendData
from torchport.backend.delegate import DelegatedModule, Payload, PyTorchBackendInterface
from torchport.backend.device import BackendDevice, BackendDeviceType
from torchport.backend.interface import BackendImplInterface
from torchport.backend.lowering_context import LoweringContext
from torchport.ir.builder import IrBuilder
from torchport.ir.graph import Graph
from torchport.ir.node import Node
from torchport.ir.shape import Shape, dtype_name

if TYPE_CHECKING:
    from torchport.backend.lazy_tensor import LazyTensor

_SHOWN = 8
"""How many elements of a list a summary shows."""


class RecordedCall(NamedTuple):
    """One call of a backend."""

    method: str
    arguments: str
    """``name=value, …``; tensors and data by shape, never by value, so a record keeps nothing alive."""


class RecordingBackend(BackendImplInterface):
    """Hands every call to ``inner`` and appends it to ``calls``, before the inner backend runs.

    Calls come from several threads (the runtime executes on one of its own); ``calls`` is in their order of arrival.
    """

    def __init__(self, inner: BackendImplInterface) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.calls: list[RecordedCall] = []

    @property
    def methods(self) -> list[str]:
        """The methods called, in order."""
        return [call.method for call in self.calls]

    def clear(self) -> None:
        """Forgets the calls so far."""
        self.calls.clear()

    def _record(self, method: str, **arguments: Any) -> None:
        text = ", ".join(f"{name}={summary(value)}" for name, value in arguments.items())
        self.calls.append(RecordedCall(method, text))

    # The contract's methods, in its order; what each means is said there.
    # ruff: noqa: D102

    def initialize_aten_bindings(self) -> None:
        self._record("initialize_aten_bindings")
        self.inner.initialize_aten_bindings()

    def prepare_to_exit(self) -> None:
        self._record("prepare_to_exit")
        self.inner.prepare_to_exit()

    def set_rng_seed(self, seed: int) -> None:
        self._record("set_rng_seed", seed=seed)
        self.inner.set_rng_seed(seed)

    def serialize_computation(self, computation: Computation) -> bytes:
        self._record("serialize_computation", computation=computation)
        return self.inner.serialize_computation(computation)

    def deserialize_computation(self, payload: bytes, computation: Computation) -> Computation:
        self._record("deserialize_computation", payload=payload, computation=computation)
        return self.inner.deserialize_computation(payload, computation)

    def delegate(self) -> PyTorchBackendInterface | None:
        self._record("delegate")
        inner = self.inner.delegate()
        return None if inner is None else RecordingDelegate(inner, self._record)

    def cache_key(self) -> str:
        self._record("cache_key")
        return self.inner.cache_key()

    def get_rng_state(self) -> torch.Tensor:
        self._record("get_rng_state")
        return self.inner.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        self._record("set_rng_state", state=state)
        self.inner.set_rng_state(state)

    def get_ir_builder(self) -> IrBuilder:
        self._record("get_ir_builder")
        return self.inner.get_ir_builder()

    def supports(self, node: Node) -> Support:
        self._record("supports", node=node)
        return self.inner.supports(node)

    def create_lowering_context(
        self,
        name: str,
        device: BackendDevice,
        post_order: Sequence[Node] = (),
        emission_map: dict[Node, Any] | None = None,
    ) -> LoweringContext:
        self._record(
            "create_lowering_context", name=name, device=device, post_order=post_order, emission_map=emission_map
        )
        return self.inner.create_lowering_context(name, device, post_order, emission_map)

    def get_compilation_devices(self, device: BackendDevice, devices: Sequence[BackendDevice]) -> list[BackendDevice]:
        self._record("get_compilation_devices", device=device, devices=devices)
        return self.inner.get_compilation_devices(device, devices)

    def compile(self, instances: list[Computation]) -> list[Computation]:
        self._record("compile", instances=instances)
        return self.inner.compile(instances)

    def execute_computation(
        self, computation: Computation, arguments: list[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        self._record("execute_computation", computation=computation, arguments=arguments, device=device)
        return self.inner.execute_computation(computation, arguments, device)

    def should_sync_tensor(self, tensor: LazyTensor) -> bool:
        self._record("should_sync_tensor", tensor=tensor)
        return self.inner.should_sync_tensor(tensor)

    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        self._record("make_computation_data_from_tensor", tensor=tensor, shape=shape, device=device)
        return self.inner.make_computation_data_from_tensor(tensor, shape, device)

    def make_computation_data_from_scalar(
        self, scalar: bool | int | float | complex, device: BackendDevice
    ) -> BackendData:
        self._record("make_computation_data_from_scalar", scalar=scalar, device=device)
        return self.inner.make_computation_data_from_scalar(scalar, device)

    def create_data_placeholder(self, device: BackendDevice, shape: Shape) -> BackendData:
        self._record("create_data_placeholder", device=device, shape=shape)
        return self.inner.create_data_placeholder(device, shape)

    def get_computation_data_from_node(self, node: Node) -> BackendData | None:
        self._record("get_computation_data_from_node", node=node)
        return self.inner.get_computation_data_from_node(node)

    def make_tensor_from_computation_data(
        self, data: BackendData, logical_scalar_type: torch.dtype | None = None
    ) -> torch.Tensor:
        self._record("make_tensor_from_computation_data", data=data, logical_scalar_type=logical_scalar_type)
        return self.inner.make_tensor_from_computation_data(data, logical_scalar_type)

    def get_default_device_type(self) -> BackendDeviceType:
        self._record("get_default_device_type")
        return self.inner.get_default_device_type()

    def set_default_device_type(self, type: BackendDeviceType) -> None:
        self._record("set_default_device_type", type=type)
        self.inner.set_default_device_type(type)

    def get_default_device_ordinal(self) -> int:
        self._record("get_default_device_ordinal")
        return self.inner.get_default_device_ordinal()

    def set_default_device_ordinal(self, ordinal: int) -> None:
        self._record("set_default_device_ordinal", ordinal=ordinal)
        self.inner.set_default_device_ordinal(ordinal)

    def eager_fallback_device_type(self) -> BackendDeviceType:
        self._record("eager_fallback_device_type")
        return self.inner.eager_fallback_device_type()

    def get_backend_devices(self) -> list[BackendDevice]:
        self._record("get_backend_devices")
        return self.inner.get_backend_devices()

    def get_backend_device(self, device: torch.device) -> BackendDevice:
        self._record("get_backend_device", device=device)
        return self.inner.get_backend_device(device)

    def create_metric_report(self) -> str:
        self._record("create_metric_report")
        return self.inner.create_metric_report()

    def get_metrics(self) -> Mapping[str, float]:
        self._record("get_metrics")
        return self.inner.get_metrics()

    def get_computation_backend_text(self, computation: Computation) -> str:
        self._record("get_computation_backend_text", computation=computation)
        return self.inner.get_computation_backend_text(computation)


class RecordingDelegate(PyTorchBackendInterface):
    """The delegate of a recording backend: hands every call to ``inner``, after it was recorded with the backend's."""

    def __init__(self, inner: PyTorchBackendInterface, record: Callable[..., None]) -> None:
        self.inner = inner
        self._record = record

    def is_available(self) -> bool | Availability:
        self._record("is_available")
        return self.inner.is_available()

    def supports(self, node: Node) -> Support:
        self._record("supports", node=node)
        return self.inner.supports(node)

    def kept_whole(self, graph: Graph) -> Sequence[Sequence[Node]]:
        self._record("kept_whole", graph=graph)
        return self.inner.kept_whole(graph)

    def preprocess(self, module: DelegatedModule, method_compile_spec: Mapping[str, Any]) -> dict[str, bytes]:
        self._record("preprocess", module=module.graphs, method_compile_spec=method_compile_spec)
        return self.inner.preprocess(module, method_compile_spec)

    def compile(self, processed: Mapping[str, Payload], method_compile_spec: Mapping[str, Any]) -> dict[str, Any]:
        self._record("compile", processed=processed, method_compile_spec=method_compile_spec)
        return self.inner.compile(processed, method_compile_spec)

    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        self._record("execute", inputs=inputs)
        return self.inner.execute(handle, inputs)


def summary(value: Any) -> str:
    """A value in few words, without its contents: a tensor by dtype and sizes, a node by operator, a list in part."""
    if isinstance(value, torch.Tensor):
        return f"Tensor {dtype_name(value.dtype)}{list(value.shape)}"
    if isinstance(value, Node):
        return value.call.name
    if isinstance(value, Graph):
        return f"Graph of {len(value)} nodes"
    if isinstance(value, BackendDevice | BackendDeviceType | torch.device):
        return str(value)
    if isinstance(value, Mapping):
        return f"{{{len(value)} entries}}"
    if isinstance(value, list | tuple):
        shown = [summary(element) for element in value[:_SHOWN]]
        if len(value) > _SHOWN:
            shown.append(f"… {len(value) - _SHOWN} more")
        return f"[{', '.join(shown)}]"
    return repr(value)
