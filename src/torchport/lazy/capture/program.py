"""A captured step: its compiled program, where its inputs come from, and where its results go."""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchport import metrics
from torchport.backend import DONATED, BackendData, LazyTensor, Shape, SyncCause, Value
from torchport.ir.location import Location
from torchport.lazy import active
from torchport.lazy.capture.guards import Guards
from torchport.lazy.capture.hyperparameters import HyperparameterSource
from torchport.lazy.capture.record import Argument, GradientOf, Held, Kept, StepRecord, Uploaded
from torchport.lazy.sync import Undo, launch
from torchport.lazy.tensor import lazy_tensor_of, new_tensor
from torchport.lazy.trace import LOCK
from torchport.runtime.error_kinds import execution_error
from torchport.runtime.execution import Execution, executor

_RUN_HERE_S = 2e-3
"""A shorter step runs on the caller's thread: handing it over would cost more than what could overlap."""
_storage_uses = torch._C._storage_Use_Count
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
        given = iter(numbers)
        backend, device = active.backend(), active.backend_device()
        make = backend.make_computation_data_from_scalar
        self._numbers: list[Any] = [
            next(given) if isinstance(place, tuple) else place for place in record.compiled.numbers
        ]
        self._numbers = [make(n, device) if isinstance(n, (bool, int, float, complex)) else n for n in self._numbers]
        self.guards = guards
        self._location = location
        self._compiled = record.compiled
        self._counters = [c for state in record.optimizers for c, _ in state.counters]
        sinks = [(index, sink) for index, sinks in enumerate(record.sinks) for sink in sinks]
        self._sinks = [(index, sink) for index, sink in sinks if not isinstance(sink, GradientOf)]
        self._gradients = [(index, sink.parameter, sink.made) for index, sink in sinks if isinstance(sink, GradientOf)]
        written = {id(ref()) for _, ref in self._sinks}
        self._written = [t for t in record.tensors if id(lazy_tensor_of(t)) in written]
        self._aliases = self._alias_plan()
        aliased = {result for result, _, _ in self._aliases}
        self._other_sinks = [(index, ref) for index, ref in self._sinks if index not in aliased]
        self._single = record.out_spec is not None and record.out_spec.is_leaf()
        self._shapes = [v.shape for v in self._compiled.computation.graph.results]

    def _alias_plan(self) -> list[tuple[int, int, weakref.ref[LazyTensor]]]:
        """Result, parameter, tensor: where a tensor's new contents may take its buffer; nothing if that is not all."""
        plan = []
        for result, parameter in self._compiled.computation.aliases.items():
            source, sinks = self.record.sources[parameter], self.record.sinks[result]
            if not isinstance(source, Held) or len(sinks) != 1 or isinstance(sinks[0], GradientOf):
                return []
            if sinks[0]() is not source.tensor():
                return []
            plan.append((result, parameter, source.tensor))
        return plan

    def missing(self) -> str:
        """What a replay reads and is no more; empty when all is there."""
        for source in self.record.sources:
            if isinstance(source, Held) and source.tensor() is None:
                return "a tensor that the step reads is no more"
        return ""

    def replay(self, leaves: Sequence[Any]) -> Any:
        """The step's result for other arguments.

        Args:
            leaves: the flat arguments.

        Raises:
            ExecutionError: it was run here, and failed; everything is as before the call.
        """
        duration = self._compiled.duration
        with LOCK:
            if active.trace.operations:
                launch(SyncCause.BARRIER, self._location, own=True)
            arguments = self._arguments(leaves)
            runs_here = duration.last_s < _RUN_HERE_S and executor.is_idle
            execution = None
            if runs_here:
                values = self._run(arguments)
            else:
                execution, values = self._launch(arguments)
            self._refresh_python()
            _REPLAYS.value += 1
            results = [self._output(out, leaves, values) for out in self.record.outputs]
        if execution is not None:
            executor.advance(execution)
        if self._single:
            return results[0]
        return pytree.tree_unflatten(results, self.record.out_spec)  # type: ignore[arg-type]

    def _arguments(self, leaves: Sequence[Any]) -> list[BackendData]:
        backend, device = active.backend(), active.backend_device()
        arguments: list[BackendData] = []
        for source in self.record.sources:
            kind = type(source)
            if kind is Held:
                arguments.append(source.tensor().value.node.data)  # type: ignore[union-attr]
            elif kind is Argument:
                arguments.append(lazy_tensor_of(leaves[source.leaf]).value.node.data)  # type: ignore[union-attr]
            elif kind is GradientOf:
                gradient = source.parameter.grad  # type: ignore[union-attr]
                arguments.append(lazy_tensor_of(gradient).value.node.data)  # type: ignore[union-attr, arg-type]
            elif kind is Uploaded:
                arguments.append(source.data)  # type: ignore[union-attr]
            else:
                arguments.append(_upload(leaves[source.leaf]))  # type: ignore[union-attr]
        make = backend.make_computation_data_from_scalar
        for number in self._numbers:
            if type(number) is HyperparameterSource:
                arguments.append(make(number.value(), device))
            elif type(number) is BackendData:
                arguments.append(number)
            else:
                arguments.append(make(number, device))
        return arguments

    def _run(self, arguments: list[BackendData]) -> list[BackendData]:
        """The results, computed here; what tensors hold has been replaced."""
        donated = self._donates_here(arguments)
        blocked = donated and threading.current_thread() is threading.main_thread()
        start = time.perf_counter()
        if blocked:  # a donated buffer has lost its old contents when its tensor does not have the new ones yet
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        try:
            made = self._execute(arguments)
            if donated:
                for result, parameter, ref in self._aliases:
                    data = arguments[parameter]
                    data.handle = made[result].handle
                    data.info = None
                    _forget_copies(ref())
                _replace(self._other_sinks, made)
            else:
                _replace(self._sinks, made)
            self._set_gradients(made)
        finally:
            if blocked:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._compiled.duration.last_s = time.perf_counter() - start
        return made

    def _execute(self, arguments: list[BackendData]) -> list[BackendData]:
        try:
            made = active.backend().execute_computation(self._compiled.computation, arguments, active.backend_device())
            error = next((data.error for data in made if data.error is not None), None)
            if error is not None:
                raise error
        except Exception as error:
            for _, parameter, _ in self._aliases:
                arguments[parameter].info = None
            where = f", called at {self._location}" if self._location is not None else ""
            raise execution_error(f"a captured step failed{where}: {type(error).__name__}: {error}", error) from error
        return made

    def _donates_here(self, arguments: list[BackendData]) -> bool:
        """Marks the aliased parameters as donated, if nobody but their tensors holds any of them.

        A tensor's value is referenced by the tensor, a variable here and the call that counts; its data by the value's
        node, the list of arguments, a variable and that call.
        """
        for _, parameter, ref in self._aliases:
            tensor, data = ref(), arguments[parameter]
            if tensor is None:
                return False
            tensor.views = None
            leaf = tensor.value
            if sys.getrefcount(leaf) != 3 or sys.getrefcount(data) != 4:
                return False
        for _, parameter, _ in self._aliases:
            arguments[parameter].info = DONATED
        return bool(self._aliases)

    def _launch(self, arguments: list[BackendData]) -> tuple[Execution, list[BackendData]]:
        """Placeholders for the results, which tensors hold now, and the execution that will fill them."""
        backend, device = active.backend(), active.backend_device()
        builder = backend.get_ir_builder()
        placeholders = [backend.create_data_placeholder(device, shape) for shape in self._shapes]
        values = [Value(builder.make_device_data(data)) for data in placeholders]
        undo = _Undo(values)
        sinks = [(index, ref()) for index, ref in self._sinks]
        sinks += [(index, self._gradient_to_write(p, made)) for index, p, made in self._gradients]
        for index, tensor in sinks:
            if tensor is not None:
                undo.add(index, tensor)
                tensor.value = values[index]
                _forget_copies(tensor)
        self._set_gradients(placeholders)
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
        return execution, placeholders

    def _gradient_to_write(self, parameter: torch.Tensor, made: bool) -> LazyTensor | None:
        """What stands behind a parameter's gradient, where the new one may be written into it; else ``None``.

        Where the step makes a tensor, that is so when nobody else has the old one, or shares its storage.
        """
        gradient = parameter.grad
        if gradient is None:
            return None
        # Held by the parameter, a variable, and the call that counts; its storage by the tensor and a Python object.
        if made and (sys.getrefcount(gradient) > 3 or _storage_uses(gradient.untyped_storage()._cdata) > 2):
            return None
        return lazy_tensor_of(gradient)

    def _set_gradients(self, made: Sequence[BackendData]) -> None:
        """Gives parameters their new gradients."""
        builder = active.builder()
        for index, parameter, is_new in self._gradients:
            lazy = self._gradient_to_write(parameter, is_new)
            value = Value(builder.make_device_data(made[index]))
            if lazy is None:
                parameter.grad = new_tensor(self._shapes[index], value)
            elif lazy.value is None or lazy.value.node.data is not made[index]:
                lazy.value = value
                lazy.views = lazy.host = None
        for parameter in self.record.cleared:
            parameter.grad = None

    def _refresh_python(self) -> None:
        """What Python would have changed: counts of optimizers, versions of tensors."""
        if self._counters:
            torch._foreach_add_(self._counters, 1.0)
        if self._written:
            torch.autograd.graph.increment_version(self._written)

    def _output(self, out: Any, leaves: Sequence[Any], values: Sequence[BackendData]) -> Any:
        kind = type(out)
        if kind is Kept:
            return out.value
        if kind is Argument:
            return leaves[out.leaf]
        tensor = new_tensor(out.storage, Value(active.builder().make_device_data(values[out.result])))
        if out.view is None:
            return tensor
        sizes, strides, offset, dtype = out.view
        return (
            tensor.view(dtype).as_strided(sizes, strides, offset)
            if dtype is not tensor.dtype
            else tensor.as_strided(sizes, strides, offset)
        )


def _replace(sinks: Sequence[tuple[int, weakref.ref[LazyTensor]]], made: Sequence[BackendData]) -> None:
    """Gives tensors new contents."""
    builder = active.builder()
    for index, ref in sinks:
        tensor = ref()
        if tensor is None:
            continue
        leaf = tensor.value
        data = None if leaf is None else leaf.node.data
        # Nobody but the tensor, its value's node, and a variable and a call here, holds what it had.
        if data is not None and sys.getrefcount(leaf) == 3 and sys.getrefcount(data) == 3 and data.info is None:
            data.handle, data.shape = made[index].handle, made[index].shape
        else:
            tensor.value = Value(builder.make_device_data(made[index]))
        tensor.views = tensor.host = None


def _forget_copies(tensor: LazyTensor | None) -> None:
    if tensor is not None:
        tensor.views = None
        tensor.host = None


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
