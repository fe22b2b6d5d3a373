"""One backend under its name: where it comes from, whether it can be used, and its one instance."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from torchport.backend.availability import Availability
from torchport.backend.capabilities import Capabilities
from torchport.backend.delegate import PyTorchBackendInterface
from torchport.backend.interface import BackendImplInterface
from torchport.backend.verification import describe, verify_class, verify_target
from torchport.errors import BackendNotAvailableError, BackendOptionError, BackendRegistrationError

ENTRY_POINT_GROUP = "torchport.backends"
"""Where an installed distribution names its backends: in ``[project.entry-points."torchport.backends"]``."""

LOWERS_ONLY = "it lowers modules ahead of time (torchport.to_backend); it does not run the lazy device"

BackendSource = BackendImplInterface | type[BackendImplInterface] | Callable[[], BackendImplInterface]
"""What a backend is registered as: itself, its class, or a factory without arguments."""


class Registration:
    """A name, what it stands for, and the instance once it is needed.

    There is one instance per registration for the life of the process, because a backend's bindings (custom operators)
    can be made only once.

    Args:
        name: the backend's name.
        target: the backend, its class, or a factory; verified here.
        owner: who registered it, for messages; taken from ``target`` when left out.
        version: of the distribution that brings it.

    Raises:
        BackendRegistrationError: ``target`` does not keep the contract.
    """

    __slots__ = ("_instance", "backend_class", "initialized", "name", "owner", "target", "version")

    def __init__(self, name: str, target: object, owner: str | None = None, version: str = "") -> None:
        self.name = name
        self.backend_class = verify_target(name, target)
        self.target = target
        self.owner = owner or describe(target)
        self.version = version or _module_version(self.backend_class or target)
        self.initialized = False
        self._instance = target if isinstance(target, BackendImplInterface) else None

    @property
    def instance(self) -> BackendImplInterface:
        """The backend; made at the first call.

        Raises:
            BackendNotAvailableError: its class or factory raised; that exception is the cause.
            BackendRegistrationError: the factory returned something that does not keep the contract.
        """
        if self._instance is None:
            self._instance = self.new_instance()
        return self._instance

    def new_instance(self) -> BackendImplInterface:
        """Another instance, for who needs a backend with a state of its own.

        Raises:
            BackendNotAvailableError: its class or factory raised; that exception is the cause.
            BackendRegistrationError: it was registered as an instance, or its factory returned something that does not
                keep the contract.
        """
        if not callable(self.target):
            raise BackendRegistrationError(f"backend {self.name!r} was registered as an instance; there is one only")
        try:
            made = self.target()
        except Exception as error:
            reason = f"making it ({describe(self.target)}) raised {type(error).__name__}: {error}"
            raise BackendNotAvailableError(self.name, reason) from error
        if not isinstance(made, BackendImplInterface):
            raise BackendRegistrationError(
                f"backend {self.name!r}: its factory {describe(self.target)} returned {describe(made)}, "
                "which does not derive from torchport.BackendImplInterface. Return the backend itself."
            )
        if type(made) is not self.backend_class:
            verify_class(self.name, type(made))
            self.backend_class = type(made)
        return made

    def with_options(self, name: str, options: str) -> Registration:
        """The registration of another instance, which has these options.

        Raises:
            BackendOptionError: it has no such options, or none at all.
        """
        made = self.new_instance()
        configure = getattr(made, "with_options", None)
        if configure is None:
            raise BackendOptionError(f"{name!r}: the backend {self.name!r} has no options")
        configured: BackendImplInterface = configure(options)
        return Registration(name, configured, self.owner, self.version)

    def availability(self) -> Availability:
        """Whether it can be used here: what its ``availability()`` or ``is_available()`` says; yes without these."""
        try:
            answer = self._ask()
        except BackendNotAvailableError as error:
            return Availability(False, error.reason, self.version, self._capabilities())
        except Exception as error:  # noqa: BLE001 - a vendor's probe; what it raised is the reason
            reason = f"asking {self.owner} whether it is available raised {type(error).__name__}: {error}"
            return Availability(False, reason, self.version, self._capabilities())
        if not answer.version:
            answer = replace(answer, version=self.version)
        if answer.capabilities == Capabilities():
            answer = replace(answer, capabilities=self._capabilities())
        return answer

    def _ask(self) -> Availability:
        subject = self._subject()
        probe = getattr(subject, "availability", None)
        if callable(probe):
            answer = probe()
            if isinstance(answer, Availability):
                return answer
            return Availability(False, f"its availability() returned {answer!r}, which is no Availability")
        if isinstance(subject, type) and inspect.isfunction(inspect.getattr_static(subject, "is_available", None)):
            subject = self.instance  # a method, as the delegate interface has it
        probe = getattr(subject, "is_available", None)
        if callable(probe) and not probe():
            return Availability(False, "its is_available() says no, without a reason")
        return Availability(True)

    def _subject(self) -> Any:
        # A factory may carry the two probes as attributes when its class is not known.
        return self._instance or self.backend_class or self.target

    def _capabilities(self) -> Capabilities:
        # On a class this can be a property, whose value is known when there is an instance.
        capabilities = getattr(self._subject(), "capabilities", None)
        return capabilities if isinstance(capabilities, Capabilities) else Capabilities()


def installed_entry_points() -> dict[str, tuple[EntryPoint, ...]]:
    """The backends that installed distributions name, read from their metadata; nothing of theirs is imported."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def describe_entry_point(point: EntryPoint) -> str:
    """Names an entry point by distribution, version and object."""
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "a distribution without metadata"
    return f"{point.value} (entry point of {distribution})"


def load_object(name: str, points: tuple[EntryPoint, ...]) -> object:
    """The object that an entry point names; imports its module.

    Raises:
        BackendRegistrationError: several distributions claim the name.
        BackendNotAvailableError: its module cannot be imported; that exception is the cause.
    """
    if len(points) > 1:
        owners = " and by ".join(describe_entry_point(p) for p in points)
        raise BackendRegistrationError(
            f"backend {name!r}: the name is claimed by {owners}. Uninstall all of these distributions but one."
        )
    (point,) = points
    try:
        return point.load()
    except Exception as error:
        reason = f"importing {describe_entry_point(point)} raised {type(error).__name__}: {error}"
        raise BackendNotAvailableError(name, reason) from error


def load_entry_point(name: str, points: tuple[EntryPoint, ...]) -> Registration:
    """The registration that an entry point stands for; imports the module that it names.

    Raises:
        BackendRegistrationError: several distributions claim the name, or the object does not keep the contract.
        BackendNotAvailableError: its module cannot be imported, or it lowers modules only.
    """
    target = load_object(name, points)
    (point,) = points
    if is_delegate_only(target):
        raise BackendNotAvailableError(name, LOWERS_ONLY)
    return Registration(name, target, describe_entry_point(point), point.dist.version if point.dist else "")


def is_delegate_only(source: object) -> bool:
    """Whether it is a delegate, or the class of one, and no backend of the lazy device."""
    kind = source if isinstance(source, type) else type(source)
    return issubclass(kind, PyTorchBackendInterface) and not issubclass(kind, BackendImplInterface)


def _module_version(target: object) -> str:
    package = sys.modules.get(str(getattr(target, "__module__", "")).partition(".")[0])
    version = getattr(package, "__version__", "")
    return version if isinstance(version, str) else ""
