"""Paths that a caller gives, and the files there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from torchport_runtime.errors import InvalidArgumentError, SavedFileError


def path_of(path: object) -> Path:
    """A path as one.

    Raises:
        InvalidArgumentError: it is none.
    """
    try:
        return Path(os.fsdecode(path))  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidArgumentError(
            f"{path!r:.60} is a {type(path).__name__}; the path of a .tport file is wanted"
        ) from error


def open_file(path: Path) -> BinaryIO:
    """A file, open for reading.

    Raises:
        FileNotFoundError: there is none.
        SavedFileError: it cannot be read, or is no file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for who writes to it
            what = "a folder" if path.is_dir() else "no file"
            raise SavedFileError(f"cannot read {path}: it is {what}. Give the file that LoweredModule.save() wrote.")
        return path.open("rb")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, SavedFileError):
            raise
        raise SavedFileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
