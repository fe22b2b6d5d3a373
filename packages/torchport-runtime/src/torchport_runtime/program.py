"""A saved module on a target: its methods are called with numpy arrays."""

from __future__ import annotations

import inspect
import itertools
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchport_runtime.arrays import arrays_of_weights
from torchport_runtime.backends import Part, find_backend
from torchport_runtime.calls import Arguments, Results
from torchport_runtime.checks import check_module
from torchport_runtime.errors import (
    BackendError,
    BackendNotAvailableError,
    DamagedFileError,
    ExecutionError,
    IRSyntaxError,
    SavedFileError,
    TorchportError,
    UnknownBackendError,
)
from torchport_runtime.expressions import parse_expression
from torchport_runtime.facts import GraphFacts, TensorFacts, difference, facts_of, text_of
from torchport_runtime.interpreter.program import Program as GraphProgram
from torchport_runtime.manifest import Method as SavedMethod
from torchport_runtime.manifest import Partition
from torchport_runtime.plain import Graph, parse_graph
from torchport_runtime.saved_module import SavedModule, open_module


def load(path: str | os.PathLike[str], fallback: str | None = None) -> Program:
    """The module of a file, ready to be called here.

    Args:
        path: the file that ``LoweredModule.save()`` wrote.
        fallback: ``"error"``, or ``"interpreter"`` to run in numpy what its backend cannot run here; what was asked for
            when the module was lowered, when left out.

    Raises:
        InvalidArgumentError: that is no path.
        FileNotFoundError: there is no such file.
        SavedFileError: it cannot be loaded: damaged, of another version, for another machine.
        UnknownBackendError, BackendNotAvailableError: its backend is missing here, and nothing may run in its place.
        UnsupportedOperationError: what is left to numpy does not run there; all operators are listed.
    """
    if fallback not in (None, "error", "interpreter"):
        raise SavedFileError(f"load(…, fallback={fallback!r}): the legal values are 'error' and 'interpreter'")
    found = open_module(path)
    graphs = {name: _graph(found, name, text) for name, text in found.graphs.items()}
    check_module(found, {name: facts_of(graph) for name, graph in graphs.items()})
    return Program(found, graphs, fallback or found.manifest.fallback)


class Program:
    """A loaded module. Each method of it is a method here; ``program[name]`` is the same.

    Methods may be called by many threads at once. Those that change state take turns, and one that only reads it has
    the state between two of them.

    Attributes:
        fallbacks: part → why numpy runs it, and how often it did.
        attributes: what was set on the module after it was lowered. Each is an attribute here too, unless a program has
            one of that name itself.
    """

    def __init__(self, saved: SavedModule, graphs: Mapping[str, Graph], fallback: str) -> None:
        self._saved = saved
        self.fallbacks: dict[str, tuple[str, int]] = {}
        self._weights = arrays_of_weights(saved)
        self._lock = threading.RLock()
        self._methods = {
            name: Method(self, name, method, graphs, fallback) for name, method in saved.manifest.methods.items()
        }
        self.attributes = dict(saved.manifest.attributes)
        for name, value in self.attributes.items():
            if name not in self.__dict__ and not hasattr(type(self), name):
                setattr(self, name, value)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(self._methods)

    @property
    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of what the methods change, by name; by all of its names what has several."""
        weights = self._saved.manifest.weights
        first = {n: w.shares or n for n, w in weights.items()}
        with self._lock:
            return {n: self._weights[source].copy() for n, source in first.items() if weights[source].is_state}

    def reset(self) -> None:
        """Gives the state the contents that it was saved with."""
        with self._lock:
            fresh = arrays_of_weights(self._saved)
            for name, weight in self._saved.manifest.weights.items():
                if weight.is_state and not weight.shares:
                    self._weights[name] = fresh[name]

    def explain(self) -> str:
        """Which parts run where, and which fallbacks happened."""
        lines = []
        for name, method in self._saved.manifest.methods.items():
            for part, partition in method.partitions.items():
                whole = f"{name}.{part}"
                reason, count = self.fallbacks.get(whole, ("", 0))
                where = f"numpy ({count} calls), because {reason}" if reason else partition.backend
                lines.append(f"{whole}: {partition.node_count} nodes on {where}")
        return "\n".join(lines)

    def __getitem__(self, name: str) -> Method:
        method = self._methods.get(name)
        if method is None:
            raise KeyError(f"{name!r}: the methods are {', '.join(self._methods)}")
        return method

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__.get("_methods", {})
        if name in methods:
            return methods[name]
        raise AttributeError(f"there is no {name!r}; the methods are {', '.join(methods)}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of ``forward``."""
        return self["forward"](*args, **kwargs)

    def __repr__(self) -> str:
        return f"Program({str(self._saved.path)!r}: {', '.join(f'{n}{m.signature}' for n, m in self._methods.items())})"


class Method:
    """One method of a program; made by it."""

    def __init__(
        self, program: Program, name: str, method: SavedMethod, graphs: Mapping[str, Graph], fallback: str
    ) -> None:
        self.name = name
        self._program = program
        self._arguments = Arguments(name, method)
        self._results = Results(method)
        parts = {
            part: self._part(program, f"{name}.{part}", method.partitions[part], declared, method, graphs, fallback)
            for part, declared in facts_of(graphs[method.graph]).calls
        }
        self._run = GraphProgram(graphs[method.graph], parts)
        positions = {symbol: i for i, symbol in enumerate(method.symbols)}
        self._numbers = [
            parse_expression(n, positions)
            if isinstance(n, str)
            else complex(n["real"], n["imag"])
            if isinstance(n, dict)
            else n
            for n in method.numbers
        ]
        weights = program._saved.manifest.weights
        self._sources = [
            (kind, which if kind == "user" else (weights[str(which)].shares or str(which)))
            for kind, which in method.arguments
        ]
        self._reads_state = any(kind == "weight" and weights[str(which)].is_state for kind, which in self._sources)
        self._writes = [(i, str(which)) for i, (kind, which) in enumerate(method.results) if kind == "state"]
        self._writes_back = [(i, int(which)) for i, (kind, which) in enumerate(method.results) if kind == "input"]
        self._user = [i for i, (kind, _) in enumerate(method.results) if kind == "user"]

    @property
    def signature(self) -> inspect.Signature:
        """What it takes."""
        return self._arguments.signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The method's result; its arrays are the caller's own.

        Raises:
            InvalidArgumentError: the arguments are not those that the method was captured for.
        """
        leaves = self._arguments.flatten(args, kwargs)
        symbols = self._arguments.check(leaves)
        numbers = [n(symbols) if callable(n) else n for n in self._numbers]
        if self._writes:
            with self._program._lock:
                results = self._run(self._inputs(leaves), numbers)
                for i, name in self._writes:
                    self._program._weights[name] = np.array(results[i])
        elif self._reads_state:
            with self._program._lock:  # state is replaced, never written to: what is taken together stays together
                inputs = self._inputs(leaves)
            results = self._run(inputs, numbers)
        else:
            results = self._run(self._inputs(leaves), numbers)
        made = [np.array(results[i]) for i in self._user]
        # All are copied before one is written: a result may be (a view of) an input.
        changed = [(leaf, np.array(results[i])) for i, leaf in self._writes_back]
        for leaf, content in changed:
            leaves[leaf][...] = content
        return self._results.build(made, symbols)

    def _inputs(self, leaves: list[Any]) -> list[Any]:
        weights = self._program._weights
        return [leaves[which] if kind == "user" else weights[which] for kind, which in self._sources]  # type: ignore[index]

    @staticmethod
    def _part(
        program: Program,
        whole: str,
        partition: Partition,
        declared: GraphFacts,
        method: SavedMethod,
        graphs: Mapping[str, Graph],
        fallback: str,
    ) -> Part:
        """How a part is called, by the rules of availability."""
        graph = graphs[partition.graph] if partition.graph else None
        try:
            backend = find_backend(partition.backend)
            try:
                part = backend.load(program._saved.payloads[partition.payload], method.options)
            except DamagedFileError as error:
                raise DamagedFileError(f"{program._saved.path}: {whole}: {error}") from error
            except Exception as error:
                reason = f"loading {whole} raised {type(error).__name__}: {error}"
                raise BackendNotAvailableError(partition.backend, reason) from error
        except (UnknownBackendError, BackendNotAvailableError) as error:
            if fallback == "error":
                raise
            if graph is None:
                raise _without_graph(partition.backend, error) from error
            return _falling_back(program, whole, graph, str(error))
        facts = getattr(part, "facts", None)
        why = difference(declared, facts) if facts is not None else ""
        if why:
            raise DamagedFileError(f"{program._saved.path}: the payload of {whole} is another than is called: {why}")
        part = _checked(f"{whole} on {partition.backend!r}", part, declared.results)
        if fallback == "interpreter" and graph is not None:
            return _with_fallback(program, whole, part, graph)
        return part


def _checked(name: str, part: Part, results: Sequence[TensorFacts]) -> Part:
    """The same, which says its name where it fails, or gives other results than are declared."""
    fixed = [tuple([n if isinstance(n, int) else None for n in sizes]) for _, sizes in results]

    def checked(arrays: list[Any], numbers: list[Any]) -> list[Any]:
        try:
            found = part(arrays, numbers)
        except TorchportError:
            raise
        except Exception as error:
            raise ExecutionError(f"{name} failed: {type(error).__name__}: {error}") from error
        if len(found) != len(fixed):
            raise ExecutionError(f"{name} gave {len(found)} results; {len(fixed)} are wanted")
        for array, sizes, declared in zip(found, fixed, results, strict=True):
            shape = np.shape(array)
            if shape != sizes and shape != tuple(
                [n if m is None else m for n, m in itertools.zip_longest(shape, sizes, fillvalue=-1)]
            ):
                raise ExecutionError(f"{name} gave sizes {list(shape)} for {text_of(declared)}")
        return found

    return checked


def _without_graph(backend: str, error: BackendError) -> BackendNotAvailableError:
    return BackendNotAvailableError(
        backend, f"{error}; its graph was not saved: lower the module with fallback='interpreter'"
    )


def _note(program: Program, whole: str, reason: str) -> None:
    with program._lock:
        known = program.fallbacks.get(whole)
        program.fallbacks[whole] = (reason, known[1] if known is not None else 0)
    if known is None:
        warnings.warn(f"{whole} runs in numpy: {reason}", UserWarning, stacklevel=5)


def _count(program: Program, whole: str) -> None:
    with program._lock:
        reason, count = program.fallbacks[whole]
        program.fallbacks[whole] = (reason, count + 1)


def _falling_back(program: Program, whole: str, graph: Graph, reason: str) -> Part:
    run = GraphProgram(graph, {})
    _note(program, whole, reason)

    def part(arrays: list[Any], numbers: list[Any]) -> list[Any]:
        _count(program, whole)
        return run(arrays, numbers)

    return part


def _with_fallback(program: Program, whole: str, first: Part, graph: Graph) -> Part:
    """The same, run by numpy when the backend fails before it has a result."""

    def part(arrays: list[Any], numbers: list[Any]) -> list[Any]:
        try:
            return first(arrays, numbers)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises; it is the reason that is reported
            _note(program, whole, f"{type(error).__name__}: {error}")
        _count(program, whole)
        return GraphProgram(graph, {})(arrays, numbers)

    return part


def _graph(found: SavedModule, name: str, text: str) -> Graph:
    try:
        return parse_graph(text)
    except IRSyntaxError as error:
        raise DamagedFileError(f"{found.path}: {name}: {error}") from error
