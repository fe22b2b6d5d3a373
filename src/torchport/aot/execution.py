"""Running a lowered method: its parts in order, each by its backend, what lies between by the interpreter."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchport import metrics
from torchport.backend import PyTorchBackendInterface
from torchport.backend.delegates import find_delegate
from torchport.errors import BackendNotAvailableError, ExecutionError, TorchportError
from torchport.ir.call import PARTITION
from torchport.ir.graph import Graph
from torchport.ir.partition import cut

Call = Callable[[list[Any]], list[Any]]

_FALLBACKS = metrics.counter("DelegateFallback")


@dataclass(slots=True)
class Fallback:
    """A part that the interpreter runs in its backend's place, and how often it did."""

    part: str
    reason: str
    calls: int = 0

    def __str__(self) -> str:
        return f"{self.part}: {self.reason} ({self.calls} calls in the interpreter)"


@dataclass(frozen=True, slots=True)
class _Step:
    call: Call
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class MethodProgram:
    """A method, ready to be called with the tensors and then the numbers of its graph.

    Args:
        graph: what is called in order: parts, and what lies between them.
        calls: how each part is called.
    """

    def __init__(self, graph: Graph, calls: Mapping[str, Call]) -> None:
        graph, rest = _without_loose_nodes(graph)
        calls = {**calls, **{name: interpreted(name, part) for name, part in rest.items()}}
        slot: dict[tuple[int, int], int] = {}
        for node in graph.parameters:
            slot[id(node), 0] = len(slot)
        number_slot = {(id(n), i): len(slot) + k for k, (n, i) in enumerate(graph.numbers)}
        count = len(slot) + len(number_slot)
        steps = []
        for node in graph.nodes:
            if node.is_device_data:
                continue
            reads = [slot[id(v.node), v.index] for v in node.operands]
            reads += [number_slot[id(node), i] for i in range(len(node.numbers))]
            writes = []
            for i in range(len(node.outputs)):
                slot[id(node), i] = count
                writes.append(count)
                count += 1
            steps.append(_Step(calls[node.call.args[0]], tuple(reads), tuple(writes)))
        self._steps = tuple(steps)
        self._results = tuple(slot[id(v.node), v.index] for v in graph.results)
        # An input that is a result, and a result that is one twice, would be one tensor in two hands.
        seen = set(range(len(graph.parameters)))
        copies = set()
        for r, i in enumerate(self._results):
            if i in seen:
                copies.add(r)
            seen.add(i)
        self._copies = frozenset(copies)
        self._count = count
        self._inputs = len(graph.parameters) + len(graph.numbers)
        only = self._steps[0] if len(self._steps) == 1 else None
        self._whole = (
            only.call
            if only is not None and only.reads == tuple(range(self._inputs)) and self._results == only.writes
            else None
        )
        self.numbers = [n.numbers[i] for n, i in graph.numbers]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """The results of the graph."""
        if self._whole is not None:
            return self._whole(inputs)
        values = inputs + [None] * (self._count - self._inputs)
        for step in self._steps:
            for i, value in zip(step.writes, step.call([values[i] for i in step.reads]), strict=True):
                values[i] = value
        return [values[i].clone() if r in self._copies else values[i] for r, i in enumerate(self._results)]


def _without_loose_nodes(graph: Graph) -> tuple[Graph, dict[str, Graph]]:
    """The graph with every run of nodes between the parts made one part for the interpreter."""
    runs: list[list[Any]] = []
    is_open = False
    for node in graph.nodes:
        if node.is_device_data:
            continue
        if node.op is PARTITION:
            is_open = False
        else:
            if not is_open:
                runs.append([])
                is_open = True
            runs[-1].append(node)
    if not runs:
        return graph, {}
    return cut(graph, runs, [f"rest{i}" for i in range(len(runs))])


def interpreted(name: str, graph: Graph) -> Call:
    """How a graph is called in the interpreter."""
    delegate = find_delegate("interpreter").instance
    handle = delegate.compile({name: str(graph).encode()}, {name: None})[name]

    def call(inputs: list[Any]) -> list[Any]:
        return delegate.execute(handle, inputs)

    return call


def delegated(name: str, delegate: PyTorchBackendInterface, handle: Any, count: int) -> Call:
    """How a part is called in its backend.

    Args:
        name: the part's, for messages.
        delegate: the backend.
        handle: what it compiled.
        count: how many results there are.

    The call raises an :class:`ExecutionError` that names the part where the backend raises or returns something else.
    """

    def call(inputs: list[Any]) -> list[Any]:
        try:
            results = delegate.execute(handle, inputs)
        except TorchportError:
            raise
        except Exception as error:
            raise ExecutionError(
                f"{name}: {type(delegate).__name__}.execute() raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(results, list | tuple):
            raise ExecutionError(
                f"{name}: {type(delegate).__name__}.execute() returned a {type(results).__name__}, not a list"
            )
        if len(results) != count:
            raise ExecutionError(
                f"{name}: {type(delegate).__name__}.execute() returned {len(results)} results; the part has {count}"
            )
        return results

    return call


def unavailable(name: str, backend: str, reason: str) -> Call:
    """How a part is called whose backend is missing: not at all."""

    def call(inputs: list[Any]) -> list[Any]:
        raise BackendNotAvailableError(backend, f"{name} cannot run: {reason}")

    return call


def with_fallback(name: str, first: Call, graph: Graph, log: list[Fallback]) -> Call:
    """The same, run by the interpreter when the backend fails before it has a result."""
    second: list[tuple[Call, Fallback]] = []
    lock = threading.Lock()

    def call(inputs: list[Any]) -> list[Any]:
        try:
            return first(inputs)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises; it is the reason that is reported
            first_cause = error.__cause__ if isinstance(error, ExecutionError) and error.__cause__ else error
            reason = f"{type(first_cause).__name__}: {first_cause}"
        with lock:  # threads that fail at once make one note
            is_first = not second
            if is_first:
                second.append((interpreted(name, graph), Fallback(name, reason)))
                log.append(second[0][1])
            run, note = second[0]
            note.calls += 1
            _FALLBACKS.value += 1
        if is_first:
            _warn(note)
        return run(inputs)

    return call


def falling_back(name: str, reason: str, graph: Graph, log: list[Fallback]) -> Call:
    """How a part is called whose backend is missing, by the interpreter."""
    second = interpreted(name, graph)
    found = Fallback(name, reason)
    log.append(found)
    _warn(found)

    def call(inputs: list[Any]) -> list[Any]:
        found.calls += 1
        _FALLBACKS.value += 1
        return second(inputs)

    return call


def _warn(note: Fallback) -> None:
    warnings.warn(f"{note.part} runs in the interpreter: {note.reason}", UserWarning, stacklevel=4)
