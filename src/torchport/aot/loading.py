"""The parts of one backend, compiled where they are to run, by the rules of availability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchport.aot.execution import Call, Fallback, delegated, falling_back, unavailable, with_fallback
from torchport.backend.delegate import PyTorchBackendInterface, availability_of
from torchport.backend.delegates import find_delegate
from torchport.errors import BackendNotAvailableError
from torchport.ir.graph import Graph


class LoadedParts:
    """Parts by their whole names, each with a handle or the reason why there is none.

    Args:
        backend: the backend's name.
        parts: name → payload and options.
        can_fall_back: whether a part without a handle may run elsewhere.
        require: whether a missing backend is an error now.

    Raises:
        BackendNotAvailableError: the backend is missing and ``require`` is set, or it is there and cannot load a part;
            neither when parts can fall back.
    """

    def __init__(self, backend: str, parts: Mapping[str, tuple[Any, Any]], can_fall_back: bool, require: bool) -> None:
        self.backend = backend
        self.names = list(parts)
        self._handles: dict[str, Any] = {}
        self._instance: PyTorchBackendInterface | None = None
        reason = ""
        try:
            self._instance = find_delegate(backend).instance
            answer = availability_of(backend, self._instance)
            reason = "" if answer else answer.reason
        except BackendNotAvailableError as error:
            reason = error.reason
        self._reasons = dict.fromkeys(parts, reason)
        if reason:
            if require and not can_fall_back:
                raise BackendNotAvailableError(backend, reason)
            return
        assert self._instance is not None
        try:
            payloads = {name: payload for name, (payload, _) in parts.items()}
            self._handles = dict(self._instance.compile(payloads, {name: o for name, (_, o) in parts.items()}))
        except Exception as error:
            if not can_fall_back:
                raise BackendNotAvailableError(backend, _reason(error)) from error
            self._compile_alone(self._instance, parts)

    def _compile_alone(self, instance: PyTorchBackendInterface, parts: Mapping[str, tuple[Any, Any]]) -> None:
        """Each part by itself, so that one that cannot be loaded takes no other with it."""
        for name, (payload, options) in parts.items():
            try:
                self._handles[name] = instance.compile({name: payload}, {name: options})[name]
            except Exception as error:  # noqa: BLE001 - whatever a backend raises is the reason
                self._reasons[name] = _reason(error)

    def call(self, name: str, result_count: int, graph: Graph | None, log: list[Fallback]) -> Call:
        """How a part is called.

        Args:
            name: the part's whole name.
            result_count: how many results it has.
            graph: what the interpreter runs in the backend's place; ``None`` where that is an error.
            log: where fallbacks are noted.
        """
        label = f"{self.backend} {name}"
        if name in self._handles and self._instance is not None:
            call = delegated(label, self._instance, self._handles[name], result_count)
            return call if graph is None else with_fallback(label, call, graph, log)
        if graph is not None:
            return falling_back(label, self._reasons[name], graph, log)
        return unavailable(name, self.backend, self._reasons[name])


def _reason(error: Exception) -> str:
    return f"its compile() raised {type(error).__name__}: {error}"
