"""Backends of the lazy device that break one law each, in the way in which an author might."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from support.eager_backend import EagerTestBackend
from torchport.backend import (
    Availability,
    BackendData,
    BackendDevice,
    Computation,
    Node,
    Shape,
    Support,
)

aten = torch.ops.aten


class Honest(EagerTestBackend):
    """The test backend, which keeps every law."""


def with_value(data: BackendData, value: torch.Tensor) -> BackendData:
    return BackendData(data.device, Shape(value.dtype, tuple(value.shape), tuple(value.stride())), value)


class DropsAnOutput(Honest):
    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        results = super().execute_computation(computation, arguments, device)
        return results[:-1] if len(results) == 3 else results


class SwapsTwoOutputs(Honest):
    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        results = super().execute_computation(computation, arguments, device)
        if [d.shape for d in results[:2]] == [Shape(torch.float32, (3, 4))] * 2:
            results[:2] = results[1::-1]
        return results


class ReturnsBeforeItIsDone(Honest):
    """As a backend that waits for nothing: its results get their values a moment later."""

    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        results = super().execute_computation(computation, arguments, device)
        promised = [BackendData(device, data.shape) for data in results]

        def fill() -> None:
            for placeholder, data in zip(promised, results, strict=True):
                placeholder.assign(data)

        threading.Timer(0.02, fill).start()
        return promised


class ReusesItsResultBuffer(Honest):
    """As a compiler whose program has one buffer for its output."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[int, torch.Tensor] = {}

    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        results = super().execute_computation(computation, arguments, device)
        if len(results) == 1 and results[0].shape.sizes == (3, 4):
            buffer = self.buffers.setdefault(id(computation), torch.empty(3, 4))
            results[0].handle = buffer.copy_(results[0].handle)
        return results


class WritesToAnInput(Honest):
    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        results = super().execute_computation(computation, arguments, device)
        if any(n.op is aten.mul.Tensor for n in computation.graph.nodes) and len(results) == 3:
            arguments[0].handle.add_(1)
        return results


class FreezesNumbers(Honest):
    """As a compiler that takes the numbers of the trace for constants."""

    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        tensors = arguments[: len(computation.graph.parameters)]
        traced = [node.numbers[i] for node, i in computation.graph.numbers]
        numbers = [self.make_computation_data_from_scalar(n, device) for n in traced]
        return super().execute_computation(computation, tensors + numbers, device)


class RoundsNumbers(Honest):
    def make_computation_data_from_scalar(self, scalar: Any, device: BackendDevice) -> BackendData:
        rounded = float(torch.tensor(scalar, dtype=torch.float32)) if isinstance(scalar, float) else scalar
        return super().make_computation_data_from_scalar(rounded, device)


class ReversesWhatItCompiles(Honest):
    def compile(self, instances: list[Computation]) -> list[Computation]:
        return super().compile(instances)[::-1]


class TakesTheHostTensor(Honest):
    """It aliases its input: the data is the caller's own memory."""

    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        return BackendData(device, shape, tensor.detach())


class KeepsTheHostTensor(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        self.kept.append(tensor)
        return super().make_computation_data_from_tensor(tensor, shape, device)


class GivesItsOwnTensor(Honest):
    def make_tensor_from_computation_data(
        self, data: BackendData, logical_scalar_type: torch.dtype | None = None
    ) -> torch.Tensor:
        if logical_scalar_type is None and isinstance(data.handle, torch.Tensor):
            return data.handle
        return super().make_tensor_from_computation_data(data, logical_scalar_type)


class LeaksHandles(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.leaked: list[Any] = []

    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        results = super().execute_computation(computation, arguments, device)
        self.leaked += [data.handle for data in results]
        return results


class SharesOnePlaceholder(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.placeholders: dict[Shape, BackendData] = {}

    def create_data_placeholder(self, device: BackendDevice, shape: Shape) -> BackendData:
        made = super().create_data_placeholder(device, shape)
        found = self.placeholders.setdefault(shape, made)
        if found.has_value:
            found = self.placeholders[shape] = made
        return found


class IgnoresTheSeed(Honest):
    def set_rng_seed(self, seed: int) -> None:
        return


class DrawsOnce(Honest):
    """As a compiler that folds random numbers into constants."""

    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        state = self.generator.get_state()
        results = super().execute_computation(computation, arguments, device)
        self.generator.set_state(state)
        return results


class SharesScratchMemory(Honest):
    """Not thread-safe: transfers go through a buffer that is one for all."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = torch.empty(0)

    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        if tensor.shape != (512,) or threading.current_thread() is threading.main_thread():
            return super().make_computation_data_from_tensor(tensor, shape, device)
        self.scratch = tensor.clone()
        threading.Event().wait(0.0005)
        return super().make_computation_data_from_tensor(self.scratch, shape, device)


class SwallowsErrors(Honest):
    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        try:
            return super().execute_computation(computation, arguments, device)
        except RuntimeError:
            zeros = [torch.zeros(s.sizes, dtype=s.dtype) for s in computation.result_shape]
            return [with_value(BackendData(device, s), z) for s, z in zip(computation.result_shape, zeros, strict=True)]


class ClampsIndices(Honest):
    """As XLA does."""

    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        if any(n.op is aten.index_select.default for n in computation.graph.nodes):
            source, index = arguments
            arguments = [source, with_value(index, index.handle.clamp(0, len(source.handle) - 1))]
        return super().execute_computation(computation, arguments, device)


class IsGoneAfterExit(Honest):
    def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
        if self.exits:
            self.exits = 0
            raise RuntimeError("the device was shut down")
        return super().execute_computation(computation, arguments, device)


class AcceptsAnyOrdinal(Honest):
    def set_default_device_ordinal(self, ordinal: int) -> None:
        return


class _OneOperator(Honest):
    """Does something to the results of one operator."""

    op: Any = None
    change: Callable[[torch.Tensor], torch.Tensor] = staticmethod(lambda value: value)

    def _run(self, node: Node, operands: list[torch.Tensor], own_numbers: list[Any]) -> list[Any]:
        results = super()._run(node, operands, own_numbers)
        return [type(self).change(r) for r in results] if node.op is self.op else results


class WrongValueOfErf(_OneOperator):
    op = aten.erf.default
    change = staticmethod(lambda value: value * 1.001)


class WrongDtypeOfArgmax(_OneOperator):
    op = aten.argmax.default
    change = staticmethod(lambda value: value.to(torch.int32))


class RefusesErfSilently(Honest):
    def supports(self, node: Node) -> Support:
        return Support(node.op is not aten.erf.default)


class SaysNoWithoutAReason(Honest):
    @classmethod
    def availability(cls) -> Availability:
        return Availability(False)


class LiesAboutItsAvailability(Honest):
    """The compiler that it needs is missing, and it says that it is there."""

    def compile(self, instances: list[Computation]) -> list[Computation]:
        raise ImportError("no module named 'the_compiler'")


class CannotBeSaved(Honest):
    """It writes and reads its bytes, and does not see that they were cut short."""

    capabilities = replace(Honest.capabilities, serialization=True)

    def serialize_computation(self, computation: Computation) -> bytes:
        return str(len(computation.graph.results)).encode().rjust(8, b" ") * 2

    def deserialize_computation(self, payload: bytes, computation: Computation) -> Computation:
        return computation if len(payload) == 16 and payload[0:1] == b" " else _negated(computation)


def _negated(computation: Computation) -> Computation:
    computation.graph.results[:] = [n.value() for n in computation.graph.parameters[: len(computation.graph.results)]]
    return computation
