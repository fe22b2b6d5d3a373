"""The parts of one backend, compiled where they are to run, by the rules of availability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchport.aot.execution import Call, Fallback, delegated, falling_back, unavailable, with_fallback
from torchport.backend.delegate import PyTorchBackendInterface, availability_of
from torchport.backend.delegates import find_delegate
from torchport.errors import BackendNotAvailableError, DamagedFileError, SavedFileError, UnknownBackendError
from torchport.ir.graph import Graph
from torchport_runtime.facts import GraphFacts, difference


@dataclass(frozen=True, slots=True)
class PartToLoad:
    """A part to be compiled where it is to run.

    Attributes:
        payload: what the backend made of its graph.
        options: what the backend was told.
        declared: what it is called with and gives.
        graph: what the interpreter runs in the backend's place; ``None`` where that is an error.
    """

    payload: bytes | memoryview
    options: Any
    declared: GraphFacts
    graph: Graph | None


class LoadedParts:
    """Parts by their whole names, each with a handle or the reason why there is none.

    Args:
        backend: the backend's name.
        parts: the parts.
        require: whether a part that cannot run is an error now, not when it is called.
        remedy: what to do about it, for that error.

    Raises:
        UnknownBackendError, BackendNotAvailableError: the backend is missing and ``require`` is set, or it is there and
            cannot load a part; neither for parts that have a graph.
        SavedFileError: a part asks for what no file may have, or its payload is not what is called.
    """

    def __init__(self, backend: str, parts: Mapping[str, PartToLoad], require: bool, remedy: str = "") -> None:
        self.backend = backend
        self._parts = parts
        self._handles: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}
        self._instance: PyTorchBackendInterface | None = None
        cannot_fall = [name for name, part in parts.items() if part.graph is None]
        try:
            instance = find_delegate(backend).instance
            answer = availability_of(backend, instance)
            if not answer:
                raise BackendNotAvailableError(backend, answer.reason)
        except (UnknownBackendError, BackendNotAvailableError) as error:
            if require and cannot_fall:
                if remedy and isinstance(error, BackendNotAvailableError):
                    raise BackendNotAvailableError(backend, f"{error.reason}; {remedy}") from error
                raise
            reason = error.reason if isinstance(error, BackendNotAvailableError) else str(error)
            self._reasons = dict.fromkeys(parts, reason)
            return
        self._instance = instance
        try:
            self._handles = dict(
                instance.compile({n: p.payload for n, p in parts.items()}, {n: p.options for n, p in parts.items()})
            )
        except SavedFileError:
            raise  # the file asks for what no file may have; nothing of it is used
        except Exception as error:
            if len(cannot_fall) == len(parts):
                raise BackendNotAvailableError(backend, _reason(error)) from error
            self._compile_alone(instance)
        for name, handle in self._handles.items():
            facts = instance.facts_of(handle)
            why = difference(parts[name].declared, facts) if facts is not None else ""
            if why:
                raise DamagedFileError(f"the payload of {name} is another than is called: {why}")

    def _compile_alone(self, instance: PyTorchBackendInterface) -> None:
        """Each part by itself, so that one that cannot be loaded takes no other with it."""
        for name, part in self._parts.items():
            try:
                self._handles[name] = instance.compile({name: part.payload}, {name: part.options})[name]
            except SavedFileError:
                raise
            except Exception as error:
                if part.graph is None:
                    raise BackendNotAvailableError(self.backend, _reason(error)) from error
                self._reasons[name] = _reason(error)

    def call(self, name: str, log: list[Fallback]) -> Call:
        """How a part is called; fallbacks are noted in ``log``."""
        part = self._parts[name]
        label = f"{self.backend} {name}"
        if name in self._handles and self._instance is not None:
            call = delegated(label, self._instance, self._handles[name], len(part.declared.results))
            return call if part.graph is None else with_fallback(label, call, part.graph, log)
        if part.graph is not None:
            return falling_back(label, self._reasons[name], part.graph, log)
        return unavailable(name, self.backend, self._reasons[name])


def _reason(error: Exception) -> str:
    return f"its compile() raised {type(error).__name__}: {error}"
