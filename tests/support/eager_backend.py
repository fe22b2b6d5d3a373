"""A whole backend, as an author outside torchport would write it: each node of a graph runs on the CPU, one by one.

It shares no code with the interpreter, so a test that passes on both tests the contract and not one implementation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchport.backend import (
    BackendData,
    BackendDevice,
    BackendDeviceType,
    BackendImplInterface,
    Capabilities,
    Computation,
    Node,
    Shape,
)
from torchport.ir.call import DEVICE_DATA, SCALAR, TENSOR_LIST

CPU = BackendDeviceType("CPU")
NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class EagerTestBackend(BackendImplInterface):
    """Handles are CPU tensors for tensors, Python numbers for numbers.

    Args:
        device_count: how many devices it claims to have; all of them are the CPU.
    """

    capabilities = Capabilities(
        dynamic_outputs=True,
        random=True,
        eager_random_stream=True,
        random_state=True,
        training=True,
    )

    def __init__(self, device_count: int = 1) -> None:
        self.devices = [BackendDevice(CPU, i) for i in range(device_count)]
        self.ordinal = 0
        self.generator = torch.Generator()
        self.executions = 0
        self.initializations = 0
        self.exits = 0

    def initialize_aten_bindings(self) -> None:
        self.initializations += 1

    def prepare_to_exit(self) -> None:
        self.exits += 1

    def set_rng_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def get_rng_state(self) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.generator.set_state(state)

    def compile(self, instances: list[Computation]) -> list[Computation]:
        return list(instances)

    def execute_computation(
        self, computation: Computation, arguments: list[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        self.executions += 1
        graph = computation.graph
        tensors = [data.handle for data in arguments[: len(graph.parameters)]]
        numbers = iter([data.handle for data in arguments[len(graph.parameters) :]])
        parameters = dict(zip(graph.parameters, tensors, strict=True))
        outputs: dict[Node, list[Any]] = {}
        # Launched computations run on a thread of the runtime, where gradients are recorded unless told otherwise.
        with torch.no_grad():
            for node in graph.nodes:
                own_numbers = [next(numbers) for _ in node.numbers]
                if node.op is DEVICE_DATA:
                    outputs[node] = [parameters[node]]
                else:
                    outputs[node] = self._run(node, [outputs[v.node][v.index] for v in node.operands], own_numbers)
        results = [outputs[v.node][v.index] for v in graph.results]
        return [
            BackendData(device, Shape(t.dtype, tuple(t.shape), tuple(t.stride()), s.symbolic), t)
            for t, s in ((_in_layout(t, v.shape), v.shape) for t, v in zip(results, graph.results, strict=True))
        ]

    def _run(self, node: Node, operands: list[torch.Tensor], numbers: list[Any]) -> list[Any]:
        if node.op is SCALAR:
            return [torch.scalar_tensor(numbers[0], dtype=node.value().shape.dtype)]
        if node.op is TENSOR_LIST:
            return operands
        args, kwargs = node.call.bind(operands, numbers)
        if not node.call.is_random:
            return list(_flatten(node.op(*args, **kwargs)))
        if any(a.name == "generator" for a in node.op._schema.arguments):
            return list(_flatten(node.op(*args, **kwargs, generator=self.generator)))
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.generator.get_state())
            result = node.op(*args, **kwargs)
            self.generator.set_state(torch.get_rng_state())
        return list(_flatten(result))

    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        handle = torch.zeros(shape.storage_numel, dtype=shape.dtype).as_strided(shape.sizes, shape.strides)
        handle.copy_(tensor.detach())
        return BackendData(device, shape, handle)

    def make_computation_data_from_scalar(
        self, scalar: bool | int | float | complex, device: BackendDevice
    ) -> BackendData:
        return BackendData(device, Shape(NUMBER_DTYPES[type(scalar)], ()), scalar)

    def make_tensor_from_computation_data(
        self, data: BackendData, logical_scalar_type: torch.dtype | None = None
    ) -> torch.Tensor:
        if not isinstance(data.handle, torch.Tensor):
            return torch.tensor(data.handle, dtype=logical_scalar_type or data.shape.dtype)
        return data.handle.to(logical_scalar_type or data.shape.dtype, copy=True)

    def get_default_device_type(self) -> BackendDeviceType:
        return CPU

    def set_default_device_type(self, type: BackendDeviceType) -> None:
        if type != CPU:
            raise ValueError(f"set_default_device_type({type}): the test backend has {CPU} only")

    def get_default_device_ordinal(self) -> int:
        return self.ordinal

    def set_default_device_ordinal(self, ordinal: int) -> None:
        if not 0 <= ordinal < len(self.devices):
            raise ValueError(f"set_default_device_ordinal({ordinal}): the test backend has {len(self.devices)} devices")
        self.ordinal = ordinal

    def eager_fallback_device_type(self) -> BackendDeviceType:
        return CPU

    def get_backend_devices(self) -> list[BackendDevice]:
        return list(self.devices)

    def get_backend_device(self, device: torch.device) -> BackendDevice:
        return self.devices[self.ordinal if device.index is None else device.index]

    def create_metric_report(self) -> str:
        return f"EagerTestBackend: {self.executions} executions"

    def get_metrics(self) -> dict[str, float]:
        return {"executions": float(self.executions)}

    def get_computation_backend_text(self, computation: Computation) -> str:
        return "\n".join(f"eager {node.call!r}" for node in computation.graph.nodes)


def _flatten(result: Any) -> Iterator[Any]:
    if isinstance(result, list | tuple):
        for element in result:
            yield from _flatten(element)
    else:
        yield result


def _in_layout(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The tensor with the strides that the IR promised; as it is where the operator's output size was not known."""
    if tuple(tensor.shape) != shape.sizes or tensor.stride() == shape.strides:
        return tensor
    made = torch.zeros(shape.storage_numel, dtype=tensor.dtype).as_strided(shape.sizes, shape.strides)
    return made.copy_(tensor)
