"""Which delegates there are: registered ones, and the second doors of backends of the first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torchport.backend.delegate import DelegatedModule, PyTorchBackendInterface
from torchport.backend.registration import BackendSource
from torchport.backend.registry import default_registry
from torchport.backend.verification import describe
from torchport.errors import BackendNotAvailableError, BackendRegistrationError, UnknownBackendError

Preprocess = Callable[[DelegatedModule, Mapping[str, Any]], dict[str, bytes]]
DelegateSource = PyTorchBackendInterface | type[PyTorchBackendInterface] | Callable[[], PyTorchBackendInterface]


@dataclass(slots=True)
class Delegate:
    """A delegate under its name.

    Attributes:
        preprocess: the function that was registered with it, else its own method.
    """

    name: str
    owner: str
    source: DelegateSource
    given_preprocess: Preprocess | None
    made: PyTorchBackendInterface | None = None

    @property
    def instance(self) -> PyTorchBackendInterface:
        """The delegate; made at the first call.

        Raises:
            BackendNotAvailableError: its class or factory raised; that exception is the cause.
            BackendRegistrationError: the factory returned something else.
        """
        if self.made is None:
            if isinstance(self.source, PyTorchBackendInterface):
                made = self.source
            else:
                try:
                    made = self.source()
                except Exception as error:
                    reason = f"making it ({describe(self.source)}) raised {type(error).__name__}: {error}"
                    raise BackendNotAvailableError(self.name, reason) from error
            if not isinstance(made, PyTorchBackendInterface):
                raise BackendRegistrationError(
                    f"backend {self.name!r}: its factory {describe(self.source)} returned {describe(made)}, which does "
                    "not derive from torchport.PyTorchBackendInterface. Return the backend itself."
                )
            self.made = made
        return self.made

    @property
    def preprocess(self) -> Preprocess:
        """What turns graphs into what is saved."""
        return self.given_preprocess or self.instance.preprocess


_lock = threading.RLock()
_delegates: dict[str, Delegate] = {}


def register_backend(
    name: str,
    source: DelegateSource | BackendSource,
    preprocess: Preprocess | None = None,
    *,
    owner: str | None = None,
) -> None:
    """Registers a backend, of the lazy device or of modules that are lowered ahead of time. It is not activated.

    Args:
        name: what users call it.
        source: the backend: an instance, its class, or a factory without arguments. A class is verified here, what a
            factory makes when its first instance is made.
        preprocess: what turns graphs into what is saved, in the place of the backend's own ``preprocess``. A factory
            that comes with one makes a :class:`PyTorchBackendInterface`; one without makes a backend of the device.
        owner: who it belongs to, for messages about names that are taken twice.

    Raises:
        BackendRegistrationError: the name is not legal or is taken (both owners are named), or the class does not keep
            the contract (every problem is listed).
    """
    kind = source if isinstance(source, type) else type(source)
    if preprocess is not None or issubclass(kind, PyTorchBackendInterface):
        register_delegate(name, cast(DelegateSource, source), preprocess, owner)
        return
    with _lock:
        holder = _delegates.get(name)
        if holder is not None:
            raise _taken(name, holder.owner, owner or describe(source))
        default_registry().register(name, cast(BackendSource, source), owner=owner)


def _taken(name: str, by: str, owner: str) -> BackendRegistrationError:
    return BackendRegistrationError(
        f"register_backend({name!r}, …): the name is taken by {by}; {owner} cannot have it too. "
        "Choose another name, or unregister the first one."
    )


def register_delegate(name: str, source: DelegateSource, preprocess: Preprocess | None, owner: str | None) -> None:
    """Takes a name for a delegate.

    Raises:
        BackendRegistrationError: the name is taken, both owners are named; or methods are missing, all are listed.
    """
    owner = owner or describe(source)
    if isinstance(source, type):
        missing = sorted(getattr(source, "__abstractmethods__", ()))
        if missing:
            raise BackendRegistrationError(
                f"backend {name!r}: {describe(source)} does not keep the contract of "
                f"torchport.PyTorchBackendInterface: it lacks {', '.join(f'{m}()' for m in missing)}."
            )
    with _lock:
        holder = _delegates.get(name)
        taken_by = holder.owner if holder is not None else None
        if taken_by is None and name in default_registry().names():
            taken_by = default_registry().registration(name).owner
        if taken_by is not None:
            raise _taken(name, taken_by, owner)
        _delegates[name] = Delegate(name, owner, source, preprocess)


def unregister_delegate(name: str) -> None:
    """Gives a name free.

    Raises:
        UnknownBackendError: nothing was registered by that name.
    """
    with _lock:
        if _delegates.pop(name, None) is None:
            raise UnknownBackendError(name, delegate_names())


def delegate_names() -> list[str]:
    """The names that :func:`find_delegate` may know."""
    return sorted({*_delegates, *default_registry().names()})


def is_delegate(name: str) -> bool:
    """Whether the name was registered for a delegate."""
    return name in _delegates


def find_delegate(name: str) -> Delegate:
    """The delegate of a name.

    Raises:
        UnknownBackendError: there is none; those that there are are listed.
        BackendNotAvailableError: the backend of this name runs the lazy device only, or cannot be made.
    """
    with _lock:
        found = _delegates.get(name)
        if found is not None:
            return found
        if name not in default_registry().names():
            raise UnknownBackendError(name, delegate_names())
        registration = default_registry().registration(name)
        second_door = registration.instance.delegate()
        if second_door is None:
            raise BackendNotAvailableError(
                name, "it runs the lazy device only: its delegate() is None. Choose a backend that lowers modules."
            )
        return Delegate(name, registration.owner, second_door, None, second_door)
