"""The exceptions that a target can meet; torchport's own tree begins with the same root.

::

    TorchportError
    ├── BackendError                     (RuntimeError)
    │   ├── UnknownBackendError          (LookupError)   no backend of that name
    │   └── BackendNotAvailableError                     it cannot be used here: with the reason
    ├── ExecutionError                   (RuntimeError)  a computation failed while it ran
    ├── InvalidArgumentError             (TypeError)     a call's arguments are not those that the method takes
    ├── UnsupportedOperationError        (NotImplementedError)  operators that cannot run here
    ├── IRSyntaxError                    (ValueError)    a graph's text that cannot be read: line and column
    └── SavedFileError                   (ValueError)    a file that cannot be loaded
        ├── DamagedFileError                             it is not what was saved
        ├── FormatVersionError                           another version of the format wrote it
        └── TargetMismatchError                          it was made for another machine

Every message says what was asked, what is in the way, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_ECHO = 160
"""How much of a text that cannot be read is shown."""


class TorchportError(Exception):
    """The base of every exception that torchport defines."""


class BackendError(TorchportError, RuntimeError):
    """Something about a backend, not about the program that runs on it."""


class UnknownBackendError(BackendError, LookupError):
    """No backend of that name is registered or installed."""

    def __init__(self, name: str, known: Iterable[str], register: str = "torchport.register_backend()") -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(
            f"there is no backend {name!r}.{hint} Registered here: {', '.join(known) or 'none'}. "
            f"Install the package that provides it, or register it with {register}."
        )
        self.name = name


class BackendNotAvailableError(BackendError):
    """The backend is registered and cannot be used here."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"Backend not available: {name!r}: {reason}")
        self.name = name
        self.reason = reason


class ExecutionError(TorchportError, RuntimeError):
    """A computation failed while it ran. Raised once, where something it spoiled is read or waited for."""


class InvalidArgumentError(TorchportError, TypeError):
    """A call's arguments are not those that the method takes."""


class UnsupportedOperationError(TorchportError, NotImplementedError):
    """Operators that can run nowhere here."""


class IRSyntaxError(TorchportError, ValueError):
    """A graph's text that cannot be read."""

    def __init__(self, message: str, line: int, column: int, text: str = "") -> None:
        where = f"line {line}, column {column}: {message[:_LONGEST_ECHO]}"
        if text:
            start = max(0, column - 1 - _LONGEST_ECHO // 2)
            shown = text[start : start + _LONGEST_ECHO]
            where += f"\n  {shown}\n  {' ' * (column - 1 - start)}^"
        super().__init__(where)
        self.line = line
        self.column = column


class SavedFileError(TorchportError, ValueError):
    """A saved module that cannot be loaded."""


class DamagedFileError(SavedFileError):
    """The file is not what was saved: cut short, changed, or never one of ours."""


class FormatVersionError(SavedFileError):
    """Another version of the format wrote the file."""


class TargetMismatchError(SavedFileError):
    """The file was made for another kind of machine."""
