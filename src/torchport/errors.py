"""The exceptions of torchport.

::

    TorchportError
    ├── BackendError
    │   ├── UnknownBackendError          (LookupError)   no backend of that name
    │   ├── NoActiveBackendError                         no backend is active
    │   ├── BackendNotAvailableError                     it is registered, and cannot be used here: with the reason
    │   ├── BackendOptionError           (ValueError)    an option that the backend does not have, or a wrong value
    │   └── BackendRegistrationError     (TypeError)     the class lacks methods, or the name is taken
    ├── CompileSpecError                 (ValueError)    what is to be lowered is not said in the form that is wanted
    ├── CaptureError                     (RuntimeError)  a method cannot be captured as a graph
    ├── ExpectedFailuresError            (ValueError)    a backend's list of expected failures is no such list
    ├── DeviceUnavailableError                           the virtual device could not be registered with torch
    ├── ExecutionError                   (RuntimeError)  a computation failed; names the user's line
    ├── StrictModeError                  (RuntimeError)  a fallback or an implicit sync that strict mode forbids
    ├── UnsupportedOperationError        (NotImplementedError)  an operator that neither backend nor fallback can run
    │   └── UnsupportedNodesError                        nodes of a module that its backend refuses: all, with reasons
    ├── InvalidArgumentError             (TypeError)     a call's arguments are not those that a method takes
    ├── SavedFileError                   (ValueError)    a file that cannot be loaded
    │   ├── DamagedFileError                             it is not what was saved
    │   ├── FormatVersionError                           another version of the format wrote it
    │   └── TargetMismatchError                          it was made for another machine
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
    "BackendOptionError",
    "BackendRegistrationError",
    "CaptureError",
    "CompileSpecError",
    "DamagedFileError",
    "DeviceUnavailableError",
    "ExecutionError",
    "ExpectedFailuresError",
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
    "UnsupportedNodesError",
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


class BackendOptionError(BackendError, ValueError):
    """An option that a backend does not have, or a value that it cannot take; every mistake is listed."""


class CompileSpecError(TorchportError, ValueError):
    """What is to be lowered is not said in the form that is wanted; every mistake is listed."""


class ExpectedFailuresError(TorchportError, ValueError):
    """The expected failures that lie beside a backend cannot be read as such; every mistake is listed."""


class CaptureError(TorchportError, RuntimeError):
    """A method cannot be captured as a graph."""


class DeviceUnavailableError(TorchportError, RuntimeError):
    """The virtual device is not registered with torch, because another package holds the device slot."""


class StrictModeError(TorchportError, RuntimeError):
    """Strict mode forbids what the program did: a fallback, or an implicit sync."""


class SettingError(TorchportError, ValueError):
    """A setting's value is not legal."""


class UnsupportedNodesError(UnsupportedOperationError):
    """Nodes of a module that a backend does not run, where nothing else may run them; all are listed."""

    def __init__(self, backend: str, method: str, refusals: list[str], count: int) -> None:
        lines = "".join(f"\n  {line}" for line in refusals)
        super().__init__(
            f"to_backend({backend!r}, …): {len(refusals)} of {count} nodes of {method} are not supported:{lines}\n"
            "Run them in the interpreter with `partition=True`, or see docs/errors.md#unsupportednodeserror."
        )
        self.refusals = refusals
