"""Compiling a trace, or finding what it was compiled to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchport import metrics
from torchport.backend import (
    BackendData,
    BackendDevice,
    BackendImplInterface,
    Computation,
    LazyTensor,
    SyncCause,
    Value,
)
from torchport.config import settings
from torchport.ir.call import DEVICE_DATA, Call
from torchport.ir.graph import Graph
from torchport.ir.location import Location
from torchport.lazy.trace import Trace
from torchport.runtime.cache import LruCache
from torchport.runtime.events import EventKind, record_event
from torchport.runtime.execution import Duration, Execution, executor, raise_once

_UNCACHED = metrics.counter("UncachedCompile")
_CACHED = metrics.counter("CachedCompile")


@dataclass(slots=True)
class CompiledTrace:
    """A compiled computation and what a launch needs to call it."""

    computation: Computation
    parameters: list[int]
    """Positions among the trace's leaves."""
    numbers: list[tuple[int, int]]
    """Positions among the trace's nodes, and the index of the number there."""
    duration: Duration
    alias_uses: list[tuple[int, int]]
    """For each aliased parameter: its position among the arguments, and its uses in the trace."""


_cache: LruCache[CompiledTrace] = LruCache(settings.compile_cache_entries)
_last_compile: dict[str, list[Call]] = {}


def compiled_trace(
    trace: Trace,
    results: list[Value],
    holders: list[list[LazyTensor]],
    backend: BackendImplInterface,
    device: BackendDevice,
    cause: SyncCause,
    location: Location,
) -> CompiledTrace:
    """What a trace was compiled to, or is compiled to now.

    Args:
        trace: the operations and leaves.
        results: the values that are wanted.
        holders: for each result, the tensors that wait for it.
        backend: which compiles.
        device: the concrete device.
        cause: what asks for it.
        location: the user's line.
    """
    key = (id(backend), str(device), trace.hash, len(trace.nodes), tuple([v.node.id + v.index for v in results]))
    found = _cache.get(key)
    if found is not None:
        _CACHED.value += 1
        return found
    found = _compile(trace, results, holders, backend, device, cause, location)
    _cache.limit = settings.compile_cache_entries
    _cache.put(key, found)
    return found


def _compile(
    trace: Trace,
    results: list[Value],
    holders: list[list[LazyTensor]],
    backend: BackendImplInterface,
    device: BackendDevice,
    cause: SyncCause,
    location: Location,
) -> CompiledTrace:
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
    return CompiledTrace(
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


class _FailedComputation(Computation):
    """What a compiler failed on: executing it raises why."""

    def __init__(self, computation: Computation, error: Exception) -> None:
        super().__init__(computation.name, computation.graph, computation.devices, {}, computation.cause)
        self.error = error


def _compiled_by(backend: BackendImplInterface, computation: Computation) -> Computation:
    """The compiled computation, checked against the contract; where that fails, one that says so when it is run."""
    name = type(backend).__name__
    try:
        answer = backend.compile([computation])
        if not isinstance(answer, list) or len(answer) != 1 or not isinstance(answer[0], Computation):
            raise TypeError(
                f"{name}.compile() has to return a list with a computation for each that it was given; it returned "
                f"{answer!r}"
            )
    except Exception as error:  # noqa: BLE001 - a stranger's compiler: its error belongs to who reads the results
        return _FailedComputation(computation, error)
    return answer[0]


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
    computation = context.build()
    compiled = _compiled_by(backend, computation)
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
        entry = CompiledTrace(compiled, [], [], Duration(), [])
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
