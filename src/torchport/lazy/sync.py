"""The barrier: launching the trace.

A launch takes the whole trace: the results are the contents of every lazy tensor that is alive and was written, so
nothing is computed twice whoever reads what and when. Looking up the compiled computation costs one dictionary access.
"""

from __future__ import annotations

import sys
import threading
import weakref
from dataclasses import dataclass

from torchport import metrics
from torchport.backend import BackendData, BackendImplInterface, LazyTensor, SyncCause, Value
from torchport.config import settings
from torchport.ir.graph import post_order
from torchport.ir.location import Location
from torchport.ir.node import Node
from torchport.lazy import active
from torchport.lazy.compilation import CompiledTrace, compiled_trace
from torchport.lazy.source import user_location
from torchport.lazy.threads import of_other_threads
from torchport.lazy.trace import LOCK, Trace
from torchport.runtime.events import EventKind, record_event
from torchport.runtime.execution import Execution, executor, wait_device_ops

_MARK_STEP = metrics.counter("MarkStep")
_GRAPH_CUT = metrics.counter("GraphCut")


def sync(wait: bool = False) -> None:
    """The barrier: launches what is pending for all live tensors, and returns.

    Where other threads record too, what they are in the middle of stays pending, unless it has to do with what this
    thread has recorded.

    Args:
        wait: also wait until everything that was launched has ended.

    Raises:
        ExecutionError: ``wait`` was asked for, and a computation failed.
    """
    _MARK_STEP.value += 1
    recorder = active.recorder
    if recorder is not None and recorder.thread == threading.get_ident():
        return  # a step that is captured is one graph: its barrier is its end
    launch(SyncCause.BARRIER, user_location() if settings.source_lines else None, own=True)
    if wait:
        wait_device_ops()


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launch took: the compiled trace, and for each result the tensors that waited for it."""

    compiled: CompiledTrace
    holders: list[list[LazyTensor]]


def launch(
    cause: SyncCause, location: Location, soon_read: bool = False, own: bool = False, wanted: Node | None = None
) -> Launched | None:
    """Launches the trace; tells what was launched.

    Args:
        cause: what asks for it.
        location: the user's line.
        soon_read: the caller waits for a result right after, so it may run the computation itself.
        own: what other threads are in the middle of stays pending.
        wanted: a node that is launched even so.
    """
    with LOCK:
        trace = active.trace
        if not trace.operations:
            return None
        if active.recorder is not None:
            active.recorder.interrupted(cause, location)
        backend = active.backend()
        device = active.backend_device()
        staying = of_other_threads(trace, wanted) if own else frozenset()
        if staying:
            trace = active.trace.split(staying)
        launched = False
        try:
            results, holders, held = _live_results(trace, backend)
            if not trace.operations or (held and not results):
                return None  # nothing of its own, or nothing that the backend wants now
            # Ctrl-C in a slow compiler leaves the trace as it is; a compiler that fails spoils what it was to compute.
            compiled = compiled_trace(trace, results, holders, backend, device, cause, location)
            launched = True
        finally:
            if staying and not launched:
                active.trace.absorb(trace)
        if not staying:
            active.trace = Trace()
        data_of = backend.get_computation_data_from_node
        arguments: list[BackendData] = [data_of(trace.leaves[i].node) for i in compiled.parameters]  # type: ignore[misc]
        arguments += compiled.number_arguments(trace.nodes, backend, device)
        builder = backend.get_ir_builder()
        placeholders = []
        undo: dict[int, list[Undo]] = {}
        kept: dict[int, int] = {}
        for value, tensors in zip(results, holders, strict=True):
            placeholder = backend.create_data_placeholder(device, value.shape)
            placeholders.append(placeholder)
            leaf = Value(builder.make_device_data(placeholder))
            for tensor in tensors:
                if tensor.previous is not None:
                    undo.setdefault(len(placeholders) - 1, []).append(Undo(tensor, leaf, tensor.previous))
                    kept[id(tensor.previous)] = kept.get(id(tensor.previous), 0) + 1
                    tensor.previous = None
                tensor.value = leaf
                tensor.views = None
                tensor.trace = 0
        if held:
            _keep_pending(held, results, holders)
        donated = _donated(trace, compiled, kept)
        execution = Execution(
            backend,
            compiled.computation,
            arguments,
            placeholders,
            device,
            location,
            donated,
            compiled.duration,
        )
        execution.undo = undo
        executor.enqueue(execution)
    executor.advance(execution, wake=not soon_read)
    return Launched(compiled, holders)


class Undo:
    """Gives a tensor its contents from before, when the computation of its new ones has failed."""

    __slots__ = ("failed", "previous", "tensor")

    def __init__(self, tensor: LazyTensor, failed: Value, previous: Value) -> None:
        self.tensor = weakref.ref(tensor)
        self.failed = failed
        self.previous = previous

    def __call__(self) -> None:
        """Does it, unless the tensor was written again since."""
        # Without the trace's lock: it may run on the runtime's thread while the holder of the lock waits for that.
        tensor = self.tensor()
        if tensor is not None and tensor.value is self.failed:
            tensor.value = self.previous
            tensor.views = None


def _live_results(
    trace: Trace, backend: BackendImplInterface
) -> tuple[list[Value], list[list[LazyTensor]], list[LazyTensor]]:
    """The values that live tensors wait for, who waits for each, and the tensors that the backend keeps pending."""
    should_sync = backend.should_sync_tensor
    # Random numbers are drawn once, so what draws them runs now, wanted or not.
    if trace.has_random or getattr(should_sync, "__func__", None) is BackendImplInterface.should_sync_tensor:
        should_sync = None  # type: ignore[assignment]
    found: dict[tuple[int, int], tuple[Value, list[LazyTensor]]] = {}
    held: list[LazyTensor] = []
    for reference in trace.written:
        tensor = reference()
        if tensor is None:
            continue
        value = tensor.value
        if value is None or value.node.data is not None:
            tensor.trace = 0
            continue
        if should_sync is not None and not should_sync(tensor):
            held.append(tensor)
            continue
        entry = found.get(key := (value.node.id, value.index))
        if entry is None:
            found[key] = value, [tensor]
        else:
            entry[1].append(tensor)
    # In the order of the trace, not in that of first writes: which tensor was there first is not part of a program.
    ordered = [found[key] for key in sorted(found)]
    results, holders = [value for value, _ in ordered], [tensors for _, tensors in ordered]
    return results, holders, held


def _keep_pending(held: list[LazyTensor], results: list[Value], holders: list[list[LazyTensor]]) -> None:
    """Traces again, in the new trace, what the tensors need that the backend does not want materialised."""
    replaced: dict[tuple[int, int], Value] = {}
    for value, tensors in zip(results, holders, strict=True):
        assert tensors[0].value is not None
        replaced[id(value.node), value.index] = tensors[0].value
    moved: dict[int, Node] = {}
    for node in post_order([t.value.node for t in held if t.value is not None]):
        if node.is_device_data:
            moved[id(node)] = node
            continue
        operands = tuple(
            replaced.get((id(v.node), v.index)) or Value(moved[id(v.node)], v.index) for v in node.operands
        )
        moved[id(node)] = active.trace.add_node(Node(node.call, operands, node.numbers, node.location))
    for tensor in held:
        assert tensor.value is not None
        active.trace.write(tensor, Value(moved[id(tensor.value.node)], tensor.value.index))


def _donated(trace: Trace, compiled: CompiledTrace, kept: dict[int, int]) -> list[int]:
    """The aliased parameters that nobody holds any more, if that is all of them; else none.

    A parameter's value object is referenced by the trace's list of leaves, by each use in a node, by ``kept`` entries
    that bring it back after a failure, by a variable here and the call that counts, and by every lazy tensor whose
    contents it is: so the count says whether there is such a tensor. Its data is referenced by the leaf and by the list
    of arguments, and by whoever reads it now. While the execution that makes it is pending, that holds one more of
    each, and lets go before this one runs.
    """
    for position, uses in compiled.alias_uses:
        leaf = trace.leaves[compiled.parameters[position]]
        data = leaf.node.data
        maker = data.info
        is_pending = isinstance(maker, Execution)
        value_count = uses + kept.get(id(leaf), 0) + 3 + (is_pending and maker.holds(leaf))
        if sys.getrefcount(leaf) != value_count or sys.getrefcount(data) != 4 + is_pending:
            return []
        if data.info is not maker:
            return []  # it ended while we counted
    return [position for position, _ in compiled.alias_uses]


def cut(location: Location) -> None:
    """Launches a trace that has grown past its bound."""
    _GRAPH_CUT.value += 1
    record_event(EventKind.CUT, f"{active.trace.operations} operations were pending without a barrier", location)
    launch(SyncCause.CUT, location)
