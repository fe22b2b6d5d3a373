"""From the trace to values: launching what is pending, reading what is asked for.

A launch takes the whole trace: the results are the contents of every lazy tensor that is alive and was written, so
nothing is computed twice whoever reads what and when. Looking up the compiled computation costs one dictionary access.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchport import metrics
from torchport.backend import (
    BackendData,
    BackendDevice,
    BackendImplInterface,
    Computation,
    LazyTensor,
    Shape,
    SyncCause,
    Value,
)
from torchport.config import settings
from torchport.errors import StrictModeError
from torchport.ir.call import DEVICE_DATA, Call
from torchport.ir.graph import Graph, post_order
from torchport.ir.location import Location
from torchport.ir.node import Node
from torchport.lazy import active
from torchport.lazy.source import user_location
from torchport.lazy.trace import LOCK, Trace
from torchport.runtime.cache import LruCache
from torchport.runtime.events import EventKind, record_event
from torchport.runtime.execution import Duration, Execution, executor, raise_once, wait_device_ops

_MARK_STEP = metrics.counter("MarkStep")
_IMPLICIT_SYNC = metrics.counter("ImplicitSync")
_GRAPH_CUT = metrics.counter("GraphCut")
_UNCACHED = metrics.counter("UncachedCompile")
_CACHED = metrics.counter("CachedCompile")


@dataclass(slots=True)
class _Compiled:
    """A compiled computation and what a launch needs to call it."""

    computation: Computation
    parameters: list[int]
    """Positions among the trace's leaves."""
    numbers: list[tuple[int, int]]
    """Positions among the trace's nodes, and the index of the number there."""
    duration: Duration
    alias_uses: list[tuple[int, int]]
    """For each aliased parameter: its position among the arguments, and its uses in the trace."""


_cache: LruCache[_Compiled] = LruCache(settings.compile_cache_entries)
_last_compile: dict[str, list[Call]] = {}


def sync(wait: bool = False) -> None:
    """The barrier: launches what is pending for all live tensors, and returns.

    Args:
        wait: also wait until everything that was launched has ended.

    Raises:
        ExecutionError: ``wait`` was asked for, and a computation failed.
    """
    _MARK_STEP.value += 1
    launch(SyncCause.BARRIER, user_location() if settings.source_lines else None)
    if wait:
        wait_device_ops()


def launch(cause: SyncCause, location: Location, soon_read: bool = False) -> None:
    """Launches the trace.

    Args:
        cause: what asks for it.
        location: the user's line.
        soon_read: the caller waits for a result right after, so it may run the computation itself.
    """
    with LOCK:
        trace = active.trace
        if not trace.operations:
            return
        backend = active.backend()
        active.trace = Trace()
        device = active.backend_device()
        results, holders, held = _live_results(trace, backend)
        key = (id(backend), str(device), trace.hash, len(trace.nodes), tuple([v.node.id + v.index for v in results]))
        compiled = _cache.get(key)
        if compiled is None:
            compiled = _compile(trace, results, holders, backend, device, cause, location)
            _cache.limit = settings.compile_cache_entries
            _cache.put(key, compiled)
        else:
            _CACHED.value += 1
        arguments: list[BackendData] = [trace.leaves[i].node.data for i in compiled.parameters]
        nodes = trace.nodes
        make = backend.make_computation_data_from_scalar
        for i, n in compiled.numbers:
            arguments.append(make(nodes[i].numbers[n], device))
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
    if getattr(should_sync, "__func__", None) is BackendImplInterface.should_sync_tensor:
        should_sync = None  # type: ignore[assignment]
    results: list[Value] = []
    holders: list[list[LazyTensor]] = []
    position: dict[tuple[int, int], int] = {}
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
        key = (value.node.id, value.index)
        at = position.get(key)
        if at is None:
            position[key] = len(results)
            results.append(value)
            holders.append([tensor])
        else:
            holders[at].append(tensor)
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


def _compile(
    trace: Trace,
    results: list[Value],
    holders: list[list[LazyTensor]],
    backend: BackendImplInterface,
    device: BackendDevice,
    cause: SyncCause,
    location: Location,
) -> _Compiled:
    _UNCACHED.value += 1
    live = Graph(trace.nodes, results).without_dead_nodes()
    graph = live.copy()
    where = str(location)
    calls = [n.call for n in trace.nodes]
    before = _last_compile.get(where)
    why = "first graph on this line" if before is None else _difference(before, calls)
    if len(_last_compile) > 1 << 12:
        _last_compile.clear()
    _last_compile[where] = calls
    record_event(EventKind.COMPILE, f"{cause}, {len(graph)} nodes, {why}", location)
    leaf_position = {id(v.node): i for i, v in enumerate(trace.leaves)}
    parameters = [leaf_position[id(n)] for n in live.parameters]
    aliases: list[tuple[int, int]] = []
    if backend.capabilities.input_output_aliasing:
        aliases = _alias_candidates(results, holders, {id(n): i for i, n in enumerate(live.parameters)})
    compiled = lower_and_compile(graph, backend, device, cause, aliases)
    uses = Counter(id(v) for n in trace.nodes for v in n.operands)
    node_position = {id(n): i for i, n in enumerate(trace.nodes)}
    return _Compiled(
        compiled,
        parameters,
        [(node_position[id(n)], i) for n, i in live.numbers],
        Duration(),
        [(p, uses[id(trace.leaves[parameters[p]])]) for _, p in aliases],
    )


def _difference(before: list[Call], now: list[Call]) -> str:
    """What is different from the graph that was compiled last on this line, at its first difference."""
    for i, (a, b) in enumerate(zip(before, now, strict=False)):
        if a is not b and a.digest != b.digest:
            if a.op is b.op is DEVICE_DATA:
                return f"an input is {b.outputs[0]!r}, before {a.outputs[0]!r}"
            if a.op is b.op and a.inputs != b.inputs:
                return f"operation {i}, {b.name}, is called with {list(b.inputs)}, before with {list(a.inputs)}"
            return f"operation {i} is {b!r}, before {a!r}"
    if len(before) != len(now):
        return f"it has {len(now)} operations, before {len(before)}"
    return "the same operations, with other results or other sharing of operands"


def lower_and_compile(
    graph: Graph,
    backend: BackendImplInterface,
    device: BackendDevice,
    cause: SyncCause,
    aliases: Sequence[tuple[int, int]] = (),
) -> Computation:
    """Lowers a graph, asks for its results, and has the backend compile it. The graph's leaves lose their data.

    Args:
        graph: nodes of its own; the compiled computation keeps it.
        backend: whose lowering context and compiler.
        device: the concrete device.
        cause: what asks for it.
        aliases: pairs of result and parameter: the result may take the parameter's buffer.
    """
    context = backend.create_lowering_context(f"graph-{_UNCACHED.value}", device, graph.nodes)
    context.devices = backend.get_compilation_devices(device, [])
    context.cause = cause
    for value in graph.results:
        context.add_result(value)
    for result, parameter in aliases:
        context.set_up_alias(result, parameter)
    (compiled,) = backend.compile([context.build()])
    for leaf in graph.parameters:
        leaf.data = None  # a cached program must not keep the first batch and the first weights alive
    return compiled


def _alias_candidates(
    results: list[Value], holders: list[list[LazyTensor]], parameter_position: dict[int, int]
) -> list[tuple[int, int]]:
    """Results that could take the buffer of a parameter: the new contents of a tensor, that of its old ones."""
    pairs: list[tuple[int, int]] = []
    taken: set[int] = set()
    for i, (value, tensors) in enumerate(zip(results, holders, strict=True)):
        previous = tensors[0].previous
        if previous is None:
            continue
        parameter = parameter_position.get(id(previous.node))
        if parameter is not None and parameter not in taken and previous.shape is value.shape:
            taken.add(parameter)
            pairs.append((i, parameter))
    return pairs


def _donated(trace: Trace, compiled: _Compiled, kept: dict[int, int]) -> list[int]:
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


def data_of(tensor: LazyTensor, cause: SyncCause = SyncCause.READ) -> BackendData:
    """The tensor's contents on the device, computed and waited for.

    Raises:
        ExecutionError: the computation that they depend on failed.
        StrictModeError: strict mode forbids an implicit sync, and the contents are pending.
    """
    with LOCK:
        if tensor.value is None:
            write_unwritten(tensor)
        if tensor.data is None:
            location = user_location()
            if cause is SyncCause.READ:
                if settings.strict_implicit_sync:
                    raise StrictModeError(
                        f"{tensor.shape!r} is read at {location} while it is pending, which strict mode forbids. "
                        "Call torchport.sync() before it, or read it outside of the loop."
                    )
                _IMPLICIT_SYNC.value += 1
                record_event(EventKind.READ, "a pending value was read", location)
            launch(cause, location, soon_read=True)
        if tensor.data is None:
            # The backend does not want it materialised at a barrier; whoever reads it needs it all the same.
            _launch_alone(tensor)
        data = tensor.data
    assert data is not None
    pending = data.info
    if isinstance(pending, Execution):
        executor.wait(pending)
    if data.error is not None:
        raise_once(data.error)
    return data


def _launch_alone(tensor: LazyTensor) -> None:
    assert tensor.value is not None
    backend = active.backend()
    device = active.backend_device()
    graph = Graph.of_results([tensor.value])
    data = run_graph(graph, backend, device)[0]
    active.trace.write(tensor, Value(backend.get_ir_builder().make_device_data(data)))


def run_graph(
    graph: Graph, backend: BackendImplInterface, device: BackendDevice, cause: SyncCause = SyncCause.EAGER
) -> list[BackendData]:
    """Compiles (or finds) a graph over materialised data, runs it now, and returns its results.

    Raises:
        ExecutionError: it failed.
    """
    key = (id(backend), str(device), graph.hash)
    entry = _cache.get(key)
    if entry is None:
        _UNCACHED.value += 1
        compiled = lower_and_compile(graph.copy(), backend, device, cause)
        entry = _Compiled(compiled, [], [], Duration(), [])
        _cache.put(key, entry)
    else:
        _CACHED.value += 1
    arguments = [n.data for n in graph.parameters]
    arguments += [backend.make_computation_data_from_scalar(n.numbers[i], device) for n, i in graph.numbers]
    results = [backend.create_data_placeholder(device, v.shape) for v in graph.results]
    execution = Execution(backend, entry.computation, arguments, results, device, graph.nodes[-1].location)
    executor.enqueue(execution)
    executor.wait(execution)
    for data in results:
        if data.error is not None:
            raise_once(data.error)
    return results


def write_unwritten(tensor: LazyTensor) -> None:
    """Contents for memory that was never written: zeros, which are as good as any and the same every time."""
    call = active.zeros_call(tensor.shape)
    node = active.trace.add(active.builder(), call, ())
    active.trace.write(tensor, Value(node))


def host_tensor(tensor: torch.Tensor, lazy: LazyTensor, cause: SyncCause = SyncCause.READ) -> torch.Tensor:
    """A CPU tensor with the values, sizes and strides of one on the lazy device; the caller's own."""
    layout = (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)
    shape = lazy.shape
    whole = layout == (shape.sizes, shape.strides, 0, shape.dtype)
    if lazy.host is None or whole:
        base = active.backend().make_tensor_from_computation_data(data_of(lazy, cause))
        base = with_strides(base, shape)
        if whole:
            return base
        lazy.host = base
    return view_of_storage(lazy.host, layout).clone()


def view_of_storage(
    base: torch.Tensor, layout: tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]
) -> torch.Tensor:
    """The view of ``base``'s storage that a layout describes."""
    sizes, strides, offset, dtype = layout
    return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), offset, sizes, strides)


def with_strides(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The tensor itself where its memory is laid out as ``shape`` says, from offset 0; else a copy that is."""
    if (
        tensor.stride() == shape.strides
        and tensor.storage_offset() == 0
        and (tensor.untyped_storage().nbytes() == shape.storage_numel * shape.dtype.itemsize)
    ):
        return tensor
    return torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype, device=tensor.device).copy_(tensor)
