"""Which backends there are, and which one is active.

Backends come from two places: ``register_backend()`` and the entry points of installed distributions, whose modules are
imported when somebody asks for them by name. A name is taken once. One backend is active at a time; nothing here
activates one by itself: the lazy device activates ``settings.backend`` when it is first used.

Switching syncs what is pending. Whoever switches gives the two things that only it can do, as callbacks of
:meth:`BackendRegistry.activate`: finishing pending work, and moving live data from the old backend to the new one.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import threading
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint

from torchport.backend.availability import Availability
from torchport.backend.interface import BackendImplInterface
from torchport.backend.options import split_name
from torchport.backend.registration import (
    BackendSource,
    Registration,
    describe_entry_point,
    installed_entry_points,
    load_entry_point,
    load_object,
)
from torchport.errors import (
    BackendNotAvailableError,
    BackendRegistrationError,
    NoActiveBackendError,
    UnknownBackendError,
)
from torchport.ir.builder import IrBuilder

_LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_name(name: str) -> None:
    """Refuses a name that no backend may have (BackendRegistrationError)."""
    if not _LEGAL_NAME.fullmatch(str(name)):
        raise BackendRegistrationError(
            f"register_backend({name!r}, …): a backend's name is letters, digits, '_', '-' and '.', "
            "and begins with a letter or digit"
        )


class BackendRegistry:
    """Backends by name, and the active one. The process has one of these; tests make their own."""

    def __init__(self) -> None:
        # Reentrant: a backend's module may register another backend while it is imported.
        self._lock = threading.RLock()
        self._registrations: dict[str, Registration] = {}
        self._with_options: dict[str, Registration] = {}
        self._entry_points: dict[str, tuple[EntryPoint, ...]] | None = None
        self._active: Registration | None = None
        self._finish_pending: Callable[[], None] | None = None
        self._activated_in = 0
        self._listeners: list[Callable[[], None]] = []

    # -- which backends there are -------------------------------------------------------------------------------

    def register(self, name: str, source: BackendSource, *, owner: str | None = None) -> Registration:
        """Takes a name for a backend, after verifying it.

        Raises:
            BackendRegistrationError: the name is not legal or is taken, or the backend does not keep the contract.
        """
        check_name(name)
        registration = Registration(name, source, owner)
        with self._lock:
            points = self._points().get(name, ())
            holder = self._registrations.get(name)
            # A module may register what its own entry point names; both then stand for one object.
            same = len(points) == 1 and points[0].value == _import_path(source)
            taken_by = holder.owner if holder else describe_entry_point(points[0]) if points and not same else None
            if taken_by is not None and not (same and holder is not None and holder.target is source):
                raise BackendRegistrationError(
                    f"register_backend({name!r}, …): the name is taken by {taken_by}; {registration.owner} cannot "
                    "have it too. Choose another name, or unregister the first one "
                    "(torchport.BackendRegistrar.unregister), or uninstall its distribution."
                )
            return self._registrations.setdefault(name, registration)

    def unregister(self, name: str) -> None:
        """Gives a name free. The active backend is deactivated first; data that is on it can no longer be read.

        Raises:
            UnknownBackendError: nothing was registered by that name.
        """
        if name not in self._registrations:
            raise UnknownBackendError(name, self._registrations)
        if name == self.active_name:
            self.deactivate()
        with self._lock:
            self._registrations.pop(name, None)

    def names(self) -> list[str]:
        """The names of all backends that are registered or installed, sorted; imports none of them."""
        with self._lock:
            return sorted({*self._registrations, *self._points()})

    def installed_object(self, name: str) -> object | None:
        """What an installed distribution names so, whatever it is; ``None`` where none or several do, or it is broken.

        Its module is imported.
        """
        with self._lock:
            points = self._points().get(name, ())
        if name in self._registrations or len(points) != 1:
            return None
        try:
            return load_object(name, points)
        except BackendNotAvailableError:
            return None

    def backends(self) -> dict[str, Availability]:
        """Each backend and whether it can be used here. Imports those that are installed and not imported yet."""
        with self._lock:
            self._entry_points = None
            return {name: self.availability(name) for name in self.names()}

    def availability(self, name: str) -> Availability:
        """Whether a backend can be used here; one that is broken is unavailable, with the reason.

        Raises:
            UnknownBackendError: there is no backend of that name.
        """
        try:
            registration = self.registration(name)
        except BackendNotAvailableError as error:
            return Availability(False, error.reason, self._entry_point_version(name))
        except BackendRegistrationError as error:
            return Availability(False, str(error), self._entry_point_version(name))
        return registration.availability()

    def registration(self, name: str) -> Registration:
        """The registration of a name; imports the module of an entry point.

        A name with options, as ``iree{target_cpu=x86-64-v4}``, is a registration of its own: another instance.

        Raises:
            BackendOptionError: it has no such options.
            UnknownBackendError: there is no backend of that name; the nearest name is suggested.
            BackendNotAvailableError: its module cannot be imported.
            BackendRegistrationError: two distributions claim the name, or it does not keep the contract.
        """
        with self._lock:
            known = self._registrations.get(name) or self._with_options.get(name)
            if known is not None:
                return known
            plain, options = split_name(name)
            if options:
                return self._with_options.setdefault(name, self.registration(plain).with_options(name, options))
            if name not in self._points():
                importlib.invalidate_caches()  # it may have been installed since, as in a notebook
                self._entry_points = None
                if name not in self._points():
                    raise UnknownBackendError(name, self.names())
            loaded = load_entry_point(name, self._points()[name])
            # Its module may have registered the same object while it was imported.
            return self._registrations.setdefault(name, loaded)

    def _points(self) -> dict[str, tuple[EntryPoint, ...]]:
        if self._entry_points is None:
            self._entry_points = installed_entry_points()
        return self._entry_points

    def _entry_point_version(self, name: str) -> str:
        points = self._points().get(name, ())
        return points[0].dist.version if len(points) == 1 and points[0].dist else ""

    # -- the active one -----------------------------------------------------------------------------------------

    @property
    def active(self) -> BackendImplInterface | None:
        """The active backend. Takes no lock: the runtime's threads may ask while another one is activated."""
        registration = self._active
        return registration.instance if registration is not None else None

    @property
    def active_name(self) -> str | None:
        """The name of the active backend."""
        registration = self._active
        return registration.name if registration is not None else None

    def activate(
        self,
        name: str,
        before_switch: Callable[[], None] | None = None,
        migrate: Callable[[BackendImplInterface, BackendImplInterface], None] | None = None,
    ) -> BackendImplInterface:
        """Makes a backend the active one; nothing happens when it is already.

        In this order: the new one is made; ``before_switch()``, when another one is active; the new one's
        ``initialize_aten_bindings()``, at its first activation; ``migrate(old, new)``; from here on the new one is
        active; the old one's ``prepare_to_exit()``. When any step before the last raises, the old one stays active.

        Args:
            name: which one.
            before_switch: finishes pending work on the active backend. Kept, and called again when this activation ends
                by :meth:`deactivate`.
            migrate: moves live data from the old backend to the new one, while both work.

        Raises:
            UnknownBackendError: there is no backend of that name.
            BackendNotAvailableError: it cannot be used here.
            BackendRegistrationError: it does not keep the contract, or its name is claimed twice.
        """
        with self._lock:
            new, old = self.registration(name), self._active
            if new is not old:
                self._check_available(new)
                backend = new.instance
                if old is not None and before_switch is not None:
                    before_switch()
                if not new.initialized:
                    backend.initialize_aten_bindings()
                    new.initialized = True
                if old is not None and migrate is not None:
                    migrate(old.instance, backend)
                self._active = new
                self._activated_in = os.getpid()
                self._finish_pending = before_switch
                if old is not None:
                    _prepare_to_exit(old)
                self._tell_listeners()
            return new.instance

    def deactivate(self) -> None:
        """Finishes pending work and leaves no backend active; data that is on the backend can no longer be read."""
        # Outside the lock: pending work is finished under locks of the lazy device, and whoever switches holds those.
        finish_pending = self._finish_pending
        if finish_pending is not None:
            finish_pending()
        with self._lock:
            old, self._active, self._finish_pending = self._active, None, None
            if old is not None:
                _prepare_to_exit(old)
        if old is not None:
            self._tell_listeners()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Has a function called after each change of the active backend, for who keeps a reference to it."""
        self._listeners.append(listener)

    def _tell_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    def close(self) -> None:
        """Interpreter exit: ``prepare_to_exit()`` of the active backend, unless a parent process activated it."""
        with self._lock:
            old, self._active = self._active, None
            if old is not None and self._activated_in == os.getpid():
                _prepare_to_exit(old)

    def _check_available(self, registration: Registration) -> None:
        availability = registration.availability()
        if not availability:
            raise BackendNotAvailableError(registration.name, availability.reason)


def _prepare_to_exit(registration: Registration) -> None:
    try:
        registration.instance.prepare_to_exit()
    except Exception as error:  # noqa: BLE001 - a vendor's clean-up must not undo the switch; what it raised is told
        warnings.warn(
            f"backend {registration.name!r}: prepare_to_exit() raised {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=3,
        )


def _import_path(source: object) -> str | None:
    if isinstance(source, BackendImplInterface) or not hasattr(source, "__qualname__"):
        return None
    return f"{source.__module__}:{source.__qualname__}"


_registry = BackendRegistry()
# At exit handlers run last in, first out. The runtime, which waits for what is launched, is imported after this module.
atexit.register(_registry.close)


def default_registry() -> BackendRegistry:
    """The registry of this process."""
    return _registry


def has_backend() -> bool:
    """Whether a backend is active."""
    return _registry.active is not None


def get_backend() -> BackendImplInterface:
    """The active backend.

    Raises:
        NoActiveBackendError: there is none; the message lists what is installed.
    """
    active = _registry.active
    if active is None:
        raise NoActiveBackendError(_registry.names())
    return active


def get_ir_builder() -> IrBuilder:
    """The active backend's factory of nodes.

    Raises:
        NoActiveBackendError: no backend is active.
    """
    return get_backend().get_ir_builder()


def activate(
    name: str,
    before_switch: Callable[[], None] | None = None,
    migrate: Callable[[BackendImplInterface, BackendImplInterface], None] | None = None,
) -> BackendImplInterface:
    """Makes a backend the active one: :meth:`BackendRegistry.activate` of this process's registry."""
    return _registry.activate(name, before_switch, migrate)
