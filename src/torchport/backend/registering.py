"""Registering backends by name, for the lazy device, for lowering ahead of time, or for both; and what there is."""

from __future__ import annotations

from types import TracebackType

from torchport.backend.availability import Availability
from torchport.backend.delegates import (
    DelegateSource,
    Preprocess,
    delegate_availability,
    is_delegate,
    register_delegate,
    registered_delegates,
    unregister_delegate,
)
from torchport.backend.registration import BackendSource, is_delegate_only
from torchport.backend.registry import default_registry
from torchport.backend.verification import describe
from torchport.errors import BackendRegistrationError


def register_backend(
    name: str,
    source: BackendSource | DelegateSource,
    preprocess: Preprocess | None = None,
    *,
    owner: str | None = None,
) -> None:
    """Registers a backend: an instance, its class, or a factory without arguments. It is not activated.

    Args:
        name: what users call it.
        source: a :class:`BackendImplInterface`, which runs the lazy device (and lowers modules where its ``delegate()``
            gives something), or a :class:`PyTorchBackendInterface`, which lowers modules. Its class is verified here,
            or when a factory's first instance is made.
        preprocess: of a delegate, in place of its own method; a factory that comes with it makes a delegate.
        owner: who it belongs to, for messages about names that are taken twice.

    Raises:
        BackendRegistrationError: the name is not legal or is taken (both owners are named), or the class does not keep
            the contract (every problem is listed).
    """
    if preprocess is not None or is_delegate_only(source):
        register_delegate(name, source, preprocess, owner)  # type: ignore[arg-type]
        return
    if is_delegate(name):
        raise BackendRegistrationError(
            f"register_backend({name!r}, …): the name is taken by {registered_delegates()[name].owner}; "
            f"{owner or describe(source)} cannot have it too. Choose another name, or unregister the first one "
            "(torchport.BackendRegistrar.unregister)."
        )
    default_registry().register(name, source, owner=owner)  # type: ignore[arg-type]


def backends() -> dict[str, Availability]:
    """Every backend that is registered or installed, by name, and whether it can be used here."""
    found = default_registry().backends()
    lowering = [n for n in found if is_delegate_only(default_registry().installed_object(n))]
    found |= {name: delegate_availability(name) for name in (*lowering, *registered_delegates())}
    return dict(sorted(found.items()))


class BackendRegistrar:
    """Registers a backend when it is made, until :meth:`unregister` or the end of its ``with`` block.

    Example:
        >>> from torchport.backend import BackendRegistrar, NullBackend, backends
        >>> with BackendRegistrar("nothing", NullBackend):
        ...     backends()["nothing"].available
        True
        >>> "nothing" in backends()
        False
    """

    def __init__(
        self,
        name: str,
        factory: BackendSource | DelegateSource,
        preprocess: Preprocess | None = None,
        *,
        owner: str | None = None,
    ) -> None:
        register_backend(name, factory, preprocess, owner=owner)
        self.name = name
        self._factory: object = factory
        self._is_registered = True

    def unregister(self) -> None:
        """Gives the name free, once; further calls do nothing. An active backend is deactivated first."""
        if self._is_registered:
            self._is_registered = False
            if is_delegate(self.name):
                unregister_delegate(self.name)
            else:
                default_registry().unregister(self.name)

    def __enter__(self) -> BackendRegistrar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unregister()

    def __repr__(self) -> str:
        state = describe(self._factory) if self._is_registered else "unregistered"
        return f"BackendRegistrar({self.name!r}, {state})"
