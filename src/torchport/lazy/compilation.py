"""Compiling a trace, or finding what it was compiled to."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
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
from torchport.ir.node import Node
from torchport.ir.symbolic_sizes import skeleton, with_symbols
from torchport.lazy.size_families import Families
from torchport.lazy.trace import Trace
from torchport.runtime.cache import LruCache
from torchport.runtime.events import EventKind, record_event
from torchport.runtime.execution import Duration, Execution, executor, raise_once
from torchport.runtime.programs import FailedComputation, compile_computation

_serials = itertools.count(1)
_CACHED = metrics.counter("CachedCompile")


@dataclass(slots=True)
class CompiledTrace:
    """A compiled computation and what a launch needs to call it."""

    computation: Computation
    parameters: list[int]
    """Positions among the trace's leaves."""
    numbers: list[tuple[int, int] | BackendData]
    """Positions among the trace's nodes, and the index of the number there; a size that the program takes is data."""
    duration: Duration
    alias_uses: list[tuple[int, int]]
    """For each aliased parameter: its position among the arguments, and its uses in the trace."""

    def number_arguments(
        self, nodes: Sequence[Node], backend: BackendImplInterface, device: BackendDevice
    ) -> list[BackendData]:
        """The data of the numbers that the computation takes, from the nodes of the trace."""
        make = backend.make_computation_data_from_scalar
        return [make(nodes[x[0]].numbers[x[1]], device) if isinstance(x, tuple) else x for x in self.numbers]


_cache: LruCache[CompiledTrace] = LruCache(settings.compile_cache_entries)
_families = Families()
# Backends that have compiled stay, since what they compiled is found by their id, which is an object's own only while
# it lives. There is one instance of each for the life of a process, but in tests.
_backends: dict[int, BackendImplInterface] = {}
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
    live = Graph(trace.nodes, results).without_dead_nodes()
    leaf_position = {id(v.node): i for i, v in enumerate(trace.leaves)}
    parameters = [leaf_position[id(n)] for n in live.parameters]
    aliases: list[tuple[int, int]] = []
    if backend.capabilities.input_output_aliasing:
        aliases = _alias_candidates(results, holders, {id(n): i for i, n in enumerate(live.parameters)})
    calls = [n.call for n in trace.nodes]

    def report(graph: Graph, how: str) -> None:
        before = _last_compile.get(where)
        why = "first graph on this line" if before is None else _difference(before, calls)
        if len(_last_compile) > 1 << 12:
            _last_compile.clear()
        _last_compile[where] = calls
        record_event(EventKind.COMPILE, f"{cause}, {len(graph)} nodes, {why}{how}", location)

    where = str(location)
    program, sizes = _program(live, backend, device, cause, aliases, report)
    uses = Counter(id(v) for n in trace.nodes for v in n.operands)
    node_position = {id(n): i for i, n in enumerate(trace.nodes)}
    numbers: list[tuple[int, int] | BackendData] = []
    for node, added in zip(live.nodes, sizes, strict=True):
        numbers += [(node_position[id(node)], i) for i in range(len(node.numbers))]
        numbers += [backend.make_computation_data_from_scalar(n, device) for n in added]
    return CompiledTrace(
        program,
        parameters,
        numbers,
        Duration(),
        [(p, uses[id(trace.leaves[parameters[p]])]) for p in program.aliases.values()],
    )


def _program(
    graph: Graph,
    backend: BackendImplInterface,
    device: BackendDevice,
    cause: SyncCause,
    aliases: Sequence[tuple[int, int]],
    report: Callable[[Graph, str], None],
) -> tuple[Computation, list[list[int]]]:
    """The program of a graph, and for each node the integers that it takes as numbers after the node's own.

    Args:
        graph: of concrete sizes; it is left as it is.
        backend: which compiles, where no program with symbolic sizes fits.
        device: the concrete device.
        cause: what asks for it.
        aliases: pairs of result and parameter.
        report: is told what is compiled, and how.
    """
    _backends[id(backend)] = backend
    if backend.capabilities.symbolic_sizes and settings.symbolic_sizes:
        bones, integers = skeleton(graph)
        key = (id(backend), str(device), bones)
        family = _families.get(key, integers)
        if family is not None and family.compiles:
            if family.computation is None or not family.admits(integers):
                family = family.with_graph(integers)
                symbols = family.symbols()
                symbolic, family.added = with_symbols(graph, symbols)
                report(symbolic, f"; sizes become symbols: {_hints(symbols, integers)}")
                fixed = [(r, p) for r, p in aliases if not any(symbolic.results[r].shape.symbolic)]
                program = lower_and_compile(symbolic, backend, device, cause, fixed)
                family.compiles = not isinstance(program, FailedComputation)
                family.computation = program if family.compiles else None
                _families.put(key, family)
            else:
                _CACHED.value += 1
            if family.computation is not None:
                return family.computation, [[integers[i] for i in positions] for positions in family.added]
    report(graph, "")
    return lower_and_compile(graph.copy(), backend, device, cause, aliases), [[] for _ in graph.nodes]


def _hints(symbols: list[str | None], integers: list[int]) -> str:
    """What the symbols of a graph are in it: ``s0=7, s1=14``."""
    return ", ".join(f"{s}={n}" for s, n in dict(zip(symbols, integers, strict=True)).items() if s is not None)


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
    context = backend.create_lowering_context(f"graph-{next(_serials)}", device, graph.nodes)
    context.devices = backend.get_compilation_devices(device, [])
    context.cause = cause
    for value in graph.results:
        context.add_result(value)
    for result, parameter in aliases:
        context.set_up_alias(result, parameter)
    computation = context.build()
    compiled = compile_computation(backend, computation)
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
    found = _cache.get(key)
    if found is None:
        program, sizes = _program(graph, backend, device, cause, (), lambda graph, how: None)
        numbers: list[tuple[int, int] | BackendData] = []
        for i, added in enumerate(sizes):
            numbers += [(i, n) for n in range(len(graph.nodes[i].numbers))]
            numbers += [backend.make_computation_data_from_scalar(n, device) for n in added]
        found = CompiledTrace(program, [], numbers, Duration(), [])
        _cache.put(key, found)
    else:
        _CACHED.value += 1
    arguments = [n.data for n in graph.parameters]
    arguments += found.number_arguments(graph.nodes, backend, device)
    results = [backend.create_data_placeholder(device, v.shape) for v in graph.results]
    execution = Execution(backend, found.computation, arguments, results, device, graph.nodes[-1].location)
    executor.enqueue(execution)
    executor.wait(execution)
    for data in results:
        if data.error is not None:
            raise_once(data.error)
    return results
