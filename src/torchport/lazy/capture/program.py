"""A captured step: its compiled program, where its inputs come from, and where its results go."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchport import metrics
from torchport.backend import BackendData, LazyTensor, Shape, Value
from torchport.ir.location import Location
from torchport.lazy import active
from torchport.lazy.capture.guards import Guards
from torchport.lazy.capture.hyperparameters import HyperparameterSource
from torchport.lazy.capture.record import Argument, Held, Kept, StepRecord, Uploaded
from torchport.lazy.sync import Undo
from torchport.lazy.tensor import lazy_tensor_of, new_tensor
from torchport.runtime.execution import Execution, executor

_REPLAYS = metrics.counter("ReplayStep")
NumberSource = HyperparameterSource | Any


class StepProgram:
    """Replays a step.

    Args:
        record: the run that it was recorded in.
        numbers: for each of its numbers a constant, or its source.
        guards: what must not change.
        location: the line that a failing computation is told to be launched at.
    """

    def __init__(self, record: StepRecord, numbers: list[NumberSource], guards: Guards, location: Location) -> None:
        assert record.compiled is not None
        self.record = record
        self.numbers = numbers
        self.guards = guards
        self._location = location
        self._compiled = record.compiled
        self._counters = [c for state in record.optimizers for c, _ in state.counters]
        self._gradients = [(t, g) for t, g in record.gradients if g is not None]
        self._without = [t for t, g in record.gradients if g is None]
        sunk = {id(ref()) for refs in record.sinks for ref in refs}
        self._written = [t for t in record.tensors if id(lazy_tensor_of(t)) in sunk]
        self._shapes = [v.shape for v in self._compiled.computation.graph.results]

    def missing(self) -> str:
        """What a replay reads and is no more; empty when all is there."""
        for source in self.record.sources:
            if isinstance(source, Held) and source.tensor() is None:
                return "a tensor that the step reads is no more"
        return ""

    def replay(self, leaves: Sequence[Any]) -> Any:
        """The step's result for other arguments. Call it with the trace's lock held.

        Args:
            leaves: the flat arguments.
        """
        backend, device = active.backend(), active.backend_device()
        arguments: list[BackendData] = []
        for source in self.record.sources:
            kind = type(source)
            if kind is Held or kind is Argument:
                owner = source.tensor() if kind is Held else lazy_tensor_of(leaves[source.leaf])  # type: ignore[union-attr]
                arguments.append(owner.value.node.data)  # type: ignore[union-attr]
            elif kind is Uploaded:
                arguments.append(source.data)  # type: ignore[union-attr]
            else:
                arguments.append(_upload(leaves[source.leaf]))  # type: ignore[union-attr]
        given = iter(self.numbers)
        for place in self._compiled.numbers:
            if isinstance(place, tuple):
                found = next(given)
                number: Any = found.value() if type(found) is HyperparameterSource else found
                arguments.append(backend.make_computation_data_from_scalar(number, device))
            else:
                arguments.append(place)
        builder = backend.get_ir_builder()
        placeholders, values = [], []
        for shape in self._shapes:
            placeholder = backend.create_data_placeholder(device, shape)
            placeholders.append(placeholder)
            values.append(Value(builder.make_device_data(placeholder)))
        undo = _Undo(values)
        for index, refs in enumerate(self.record.sinks):
            for ref in refs:
                tensor = ref()
                if tensor is not None:
                    undo.add(index, tensor)
                    tensor.value = values[index]
                    tensor.views = None
                    tensor.host = None
        donated = _donated(self._compiled.alias_uses, arguments, undo)
        execution = _Replay(
            backend,
            self._compiled.computation,
            arguments,
            placeholders,
            device,
            self._location,
            donated,
            self._compiled.duration,
        )
        execution.undo = undo
        executor.enqueue(execution)
        self._refresh_python()
        _REPLAYS.value += 1
        results = [self._output(out, leaves, values) for out in self.record.outputs]
        return execution, results

    def _refresh_python(self) -> None:
        """What Python would have changed: counts of optimizers, gradients, versions."""
        if self._counters:
            torch._foreach_add_(self._counters, 1.0)
        for tensor, gradient in self._gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient
        for tensor in self._without:
            tensor.grad = None
        if self._written:
            torch.autograd.graph.increment_version(self._written)

    def _output(self, out: Any, leaves: Sequence[Any], values: Sequence[Value]) -> Any:
        kind = type(out)
        if kind is Kept:
            return out.value
        if kind is Argument:
            return leaves[out.leaf]
        tensor = new_tensor(out.storage, values[out.result])
        if out.view is None:
            return tensor
        sizes, strides, offset, dtype = out.view
        return (
            tensor.view(dtype).as_strided(sizes, strides, offset)
            if dtype is not tensor.dtype
            else tensor.as_strided(sizes, strides, offset)
        )

    def pack(self, results: list[Any]) -> Any:
        """The step's result from its leaves."""
        assert self.record.out_spec is not None
        return pytree.tree_unflatten(results, self.record.out_spec)


def _upload(tensor: torch.Tensor) -> BackendData:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    shape = Shape(tensor.dtype, tuple(tensor.shape), tensor.stride())
    return active.backend().make_computation_data_from_tensor(tensor, shape, active.backend_device())


class _Replay(Execution):
    """A launched replay."""

    __slots__ = ()

    def holds(self, value: Any) -> int:
        """How many references to a value it has: one, while it is pending."""
        undo: Any = self.undo
        return int(undo.holds(value))


class _Undo(Mapping[int, Sequence[Undo]]):
    """What gives tensors their contents from before; made when it is asked for."""

    def __init__(self, values: list[Value]) -> None:
        self._values = values
        self._ids = {id(v) for v in values}
        self._steps: dict[int, list[tuple[weakref.ref[LazyTensor], Value]]] = {}
        self.kept: dict[int, int] = {}
        self.replaced: dict[int, Value] = {}

    def add(self, result: int, tensor: LazyTensor) -> None:
        before = tensor.value
        if before is not None and before.node.data is not None:
            self._steps.setdefault(result, []).append((weakref.ref(tensor), before))
            self.kept[id(before)] = self.kept.get(id(before), 0) + 1
            self.replaced[id(before.node.data)] = before

    def holds(self, value: Any) -> int:
        return int(id(value) in self._ids)

    def __getitem__(self, result: int) -> Sequence[Undo]:
        return [
            Undo(tensor, self._values[result], before)
            for ref, before in self._steps[result]
            if (tensor := ref()) is not None
        ]

    def __iter__(self) -> Any:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)


def _donated(alias_uses: Iterable[tuple[int, int]], arguments: list[BackendData], undo: _Undo) -> list[int]:
    """The aliased parameters that nobody holds any more, if that is all of them; else none.

    The value of one is referenced by ``undo`` (a step for each tensor, and a table), by a variable here and the call
    that counts; its data by the value's node, the list of arguments, a variable and that call. While the execution that
    makes it is pending, that holds one more of each.
    """
    positions = []
    for position, _ in alias_uses:
        data = arguments[position]
        leaf = undo.replaced.get(id(data))
        if leaf is None:
            return []
        maker = data.info
        is_pending = isinstance(maker, Execution)
        count = undo.kept[id(leaf)] + 3 + (is_pending and maker.holds(leaf))
        if sys.getrefcount(leaf) != count or sys.getrefcount(data) != 4 + is_pending or data.info is not maker:
            return []
        positions.append(position)
    return positions
