"""The exceptions of torchport.

::

    TorchportError
    ├── BackendError
    │   ├── UnknownBackendError          (LookupError)   no backend of that name
    │   ├── NoActiveBackendError                         no backend is active
    │   ├── BackendNotAvailableError                     it is registered, and cannot be used here: with the reason
    │   └── BackendRegistrationError     (TypeError)     the class lacks methods, or the name is taken
    ├── DeviceUnavailableError                           the virtual device could not be registered with torch
    ├── ExecutionError                   (RuntimeError)  a computation failed; names the user's line
    ├── StrictModeError                  (RuntimeError)  a fallback or an implicit sync that strict mode forbids
    ├── UnsupportedOperationError        (NotImplementedError)  an operator that neither backend nor fallback can run
    ├── IRSyntaxError                    (ValueError)    a graph's text that cannot be read: line and column
    └── SettingError                     (ValueError)    a setting's value is not legal

Every message says what was asked, what is in the way, and what to do; docs/errors.md has one section per class.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TorchportError(Exception):
    """The base of every exception that torchport defines."""


class BackendError(TorchportError, RuntimeError):
    """Something about a backend, not about the program that runs on it."""


class UnknownBackendError(BackendError, LookupError):
    """No backend of that name is registered or installed."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(
            f"there is no backend {name!r}.{hint} Registered here: {', '.join(known) or 'none'}. "
            "Install the package that provides it, or register it with torchport.register_backend()."
        )
        self.name = name


class NoActiveBackendError(BackendError):
    """No backend is active."""

    def __init__(self, known: Iterable[str]) -> None:
        super().__init__(
            "no backend is active. Choose one with torchport.use(name) or the environment variable TORCHPORT_BACKEND. "
            f"Registered here: {', '.join(sorted(known)) or 'none'}."
        )


class BackendNotAvailableError(BackendError):
    """The backend is registered and cannot be used here."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"Backend not available: {name!r}: {reason}")
        self.name = name
        self.reason = reason


class BackendRegistrationError(BackendError, TypeError):
    """The class is not a backend: every missing or misnamed method is listed; or its name is taken."""


class DeviceUnavailableError(TorchportError, RuntimeError):
    """The virtual device is not registered with torch, because another package holds the device slot."""


class ExecutionError(TorchportError, RuntimeError):
    """A computation failed while it ran. Raised once, where something it spoiled is read or waited for."""


class StrictModeError(TorchportError, RuntimeError):
    """Strict mode forbids what the program did: a fallback, or an implicit sync."""


class UnsupportedOperationError(TorchportError, NotImplementedError):
    """An operator that neither the backend nor the eager fallback can run."""


class IRSyntaxError(TorchportError, ValueError):
    """A graph's text that cannot be read."""

    def __init__(self, message: str, line: int, column: int, text: str = "") -> None:
        where = f"line {line}, column {column}: {message}"
        if text:
            where += f"\n  {text}\n  {' ' * (column - 1)}^"
        super().__init__(where)
        self.line = line
        self.column = column


class SettingError(TorchportError, ValueError):
    """A setting's value is not legal."""
