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

from collections.abc import Iterable

from torchport_runtime.errors import (
    BackendError,
    BackendNotAvailableError,
    DamagedFileError,
    ExecutionError,
    FormatVersionError,
    InvalidArgumentError,
    IRSyntaxError,
    SavedFileError,
    TargetMismatchError,
    TorchportError,
    UnknownBackendError,
    UnsupportedOperationError,
)

__all__ = [
    "BackendError",
    "BackendNotAvailableError",
    "BackendRegistrationError",
    "DamagedFileError",
    "DeviceUnavailableError",
    "ExecutionError",
    "FormatVersionError",
    "IRSyntaxError",
    "InvalidArgumentError",
    "NoActiveBackendError",
    "SavedFileError",
    "SettingError",
    "StrictModeError",
    "TargetMismatchError",
    "TorchportError",
    "UnknownBackendError",
    "UnsupportedOperationError",
]


class NoActiveBackendError(BackendError):
    """No backend is active."""

    def __init__(self, known: Iterable[str]) -> None:
        super().__init__(
            "no backend is active. Choose one with torchport.use(name) or the environment variable TORCHPORT_BACKEND. "
            f"Registered here: {', '.join(sorted(known)) or 'none'}."
        )


class BackendRegistrationError(BackendError, TypeError):
    """The class is not a backend: every missing or misnamed method is listed; or its name is taken."""


class DeviceUnavailableError(TorchportError, RuntimeError):
    """The virtual device is not registered with torch, because another package holds the device slot."""


class StrictModeError(TorchportError, RuntimeError):
    """Strict mode forbids what the program did: a fallback, or an implicit sync."""


class SettingError(TorchportError, ValueError):
    """A setting's value is not legal."""
