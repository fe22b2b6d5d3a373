"""Expected failures: a file beside the backend's module that says which cases fail, and why."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

from torchport.conformance.catalogue import unknown_names
from torchport.errors import ExpectedFailuresError

FILE_NAME = "expected_failures.toml"


def expected_failures(owner: type) -> dict[str, str]:
    """Name of a case → why it fails, from the file beside the module of the backend's class; empty without one.

    ::

        "errors.an_index_out_of_range_is_an_error" = "the compiler clamps indices, and offers no other mode"
        "operators.aten.erf.default[bfloat16]" = "…"

    Raises:
        ExpectedFailuresError: it is no such file, names a case that is not there, or gives no reason.
    """
    file = file_beside(owner)
    return {} if file is None or not file.is_file() else read(file)


def file_beside(owner: type) -> Path | None:
    """Where the file is, if there is one; ``None`` where the class has no file."""
    try:
        return Path(inspect.getfile(owner)).with_name(FILE_NAME)
    except (TypeError, OSError):
        return None


def read(file: Path) -> dict[str, str]:
    """The expected failures of a file.

    Raises:
        ExpectedFailuresError: see :func:`expected_failures`.
    """
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExpectedFailuresError(f'{file}: {error}. Write lines of the form: "case" = "reason"') from error
    wrong = [f"{name}: no case has this name" for name in unknown_names(found)]
    wrong += [f"{name}: its reason is {r!r}" for name, r in found.items() if not isinstance(r, str) or not r.strip()]
    if wrong:
        raise ExpectedFailuresError("\n  ".join([f"{file} has mistakes:", *wrong]))
    return found
