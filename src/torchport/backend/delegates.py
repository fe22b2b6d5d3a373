"""Which delegates there are: registered ones, and the second doors of backends of the first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchport.backend.availability import Availability
from torchport.backend.delegate import DelegatedModule, PyTorchBackendInterface, availability_of
from torchport.backend.registration import is_delegate_only
from torchport.backend.registry import check_name, default_registry
from torchport.backend.verification import describe
from torchport.errors import BackendError, BackendNotAvailableError, BackendRegistrationError, UnknownBackendError

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


def register_delegate(name: str, source: DelegateSource, preprocess: Preprocess | None, owner: str | None) -> None:
    """Takes a name for a delegate.

    Raises:
        BackendRegistrationError: the name is not legal, or taken, both owners are named; or methods are missing, all
            are listed.
    """
    check_name(name)
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
            taken_by = _installed_owner(name)
        if taken_by is not None:
            raise BackendRegistrationError(
                f"register_backend({name!r}, …): the name is taken by {taken_by}; {owner} cannot have it too. "
                "Choose another name, or unregister the first one."
            )
        _delegates[name] = Delegate(name, owner, source, preprocess)


def _installed_owner(name: str) -> str:
    try:
        return default_registry().registration(name).owner
    except BackendError:  # it cannot be used, and has the name all the same
        return f"the backend {name!r} that is installed"


def unregister_delegate(name: str) -> None:
    """Gives a name free.

    Raises:
        UnknownBackendError: nothing was registered by that name.
    """
    with _lock:
        if _delegates.pop(name, None) is None:
            raise UnknownBackendError(name, delegate_names())


def delegate_availability(name: str) -> Availability:
    """Whether a delegate can compile and execute here; one that cannot be made is not available, with the reason."""
    try:
        return availability_of(name, find_delegate(name).instance)
    except BackendNotAvailableError as error:
        return Availability(False, error.reason)
    except BackendRegistrationError as error:
        return Availability(False, str(error))


def delegate_names() -> list[str]:
    """The names that :func:`find_delegate` may know."""
    return sorted({*_delegates, *default_registry().names()})


def registered_delegates() -> dict[str, Delegate]:
    """The delegates that were registered under names of their own, by name."""
    return dict(_delegates)


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
        installed: Any = default_registry().installed_object(name)
        if is_delegate_only(installed):
            return _delegates.setdefault(name, Delegate(name, describe(installed), installed, None))
        registration = default_registry().registration(name)
        second_door = registration.instance.delegate()
        if second_door is None:
            raise BackendNotAvailableError(
                name, "it runs the lazy device only: its delegate() is None. Choose a backend that lowers modules."
            )
        return Delegate(name, registration.owner, second_door, None, second_door)
