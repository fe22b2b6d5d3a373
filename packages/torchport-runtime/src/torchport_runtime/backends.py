"""The backends of a target, and whether they can be used here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from torchport_runtime.errors import BackendError, BackendNotAvailableError, UnknownBackendError

ENTRY_POINT_GROUP = "torchport_runtime.backends"
"""Where an installed distribution names its backends: in ``[project.entry-points."torchport_runtime.backends"]``."""

Part = Callable[[list[Any], list[Any]], list[Any]]
"""A part that is ready: arrays and numbers in, arrays out."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used here, and why not."""

    available: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.available


class RuntimeBackend(ABC):
    """What runs the payloads of one of torchport's backends, without PyTorch."""

    def is_available(self) -> Availability:
        """Whether payloads can be loaded and run here."""
        return Availability(True)

    @abstractmethod
    def load(self, payload: memoryview, options: Any) -> Part:
        """A part, from what its backend made of it on the host.

        Args:
            payload: the bytes, where the file is mapped. They come from a file: check before you use them.
            options: what the backend was told on the host.

        Returns:
            The part. Where it has an attribute ``facts``, a :class:`torchport_runtime.facts.GraphFacts`, this is
            compared with what the file says that the part takes and gives.

        Raises:
            DamagedFileError: the payload is not what the backend made. The module is not loaded, whatever may run in
                the backend's place.
            Exception: of any other kind: the payload cannot be loaded here. Its text becomes the reason.
        """


Source = RuntimeBackend | Callable[[], RuntimeBackend]
_registered: dict[str, Source] = {}


def register_backend(name: str, source: Source) -> None:
    """Registers a backend: an instance, its class, or a factory without arguments.

    Raises:
        BackendError: the name is taken.
    """
    if name in _registered:
        raise BackendError(f"register_backend({name!r}, …): the name is taken by {_registered[name]!r}")
    _registered[name] = source


def unregister_backend(name: str) -> None:
    """Gives a name free."""
    _registered.pop(name, None)


def backend_names() -> list[str]:
    """The names of all backends that are registered or installed; none is imported."""
    return sorted({*_registered, *(p.name for p in entry_points(group=ENTRY_POINT_GROUP))})


def find_backend(name: str) -> RuntimeBackend:
    """The backend of a name, which can be used here.

    Raises:
        UnknownBackendError: there is none; those that there are are listed.
        BackendNotAvailableError: it cannot be used here.
    """
    source = _registered.get(name)
    if source is None:
        points = [p for p in entry_points(group=ENTRY_POINT_GROUP) if p.name == name]
        if not points:
            raise UnknownBackendError(name, backend_names(), "torchport_runtime.register_backend()")
        try:
            source = points[0].load()
        except Exception as error:
            reason = f"importing {points[0].value} raised {type(error).__name__}: {error}"
            raise BackendNotAvailableError(name, reason) from error
    try:
        backend: RuntimeBackend = source if isinstance(source, RuntimeBackend) else source()
        answer = backend.is_available()
    except Exception as error:
        raise BackendNotAvailableError(name, f"making it raised {type(error).__name__}: {error}") from error
    if not answer:
        raise BackendNotAvailableError(name, answer.reason)
    return backend
