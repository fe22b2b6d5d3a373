"""Inputs from the command line, and results to a file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchport_runtime.command.leaves import input_names
from torchport_runtime.errors import InvalidArgumentError, SavedFileError
from torchport_runtime.interpreter.dtypes import NAMES
from torchport_runtime.manifest import Method, Slot

_DTYPES = {name: dtype for dtype, name in NAMES.items()}


def read_inputs(method: Method, texts: Iterable[str]) -> dict[str, Any]:
    """Inputs by name, from ``NAME=array.npy``, ``NAME=arrays.npz:MEMBER``, ``NAME=JSON`` or ``arrays.npz``.

    Raises:
        InvalidArgumentError: a text is none of these, or its file cannot be read.
    """
    slots = dict(zip(input_names(method), method.inputs, strict=True))
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            if not text.endswith(".npz"):
                raise InvalidArgumentError(f"--input {text}: NAME=array.npy, NAME=JSON or arrays.npz is wanted")
            found |= _archive(text)
        elif ".np" in value and value.partition(":")[0].endswith((".npy", ".npz")):
            found[name] = _from_file(name, value)
        else:
            found[name] = _from_json(name, value, slots.get(name))
    return found


def _from_file(name: str, value: str) -> Any:
    path, _, member = value.partition(":")
    if path.endswith(".npz"):
        arrays = _archive(path)
        if not member and len(arrays) == 1:
            return next(iter(arrays.values()))
        if member not in arrays:
            raise InvalidArgumentError(f"--input {name}={value}: {path}:MEMBER is wanted, of {', '.join(arrays)}")
        return arrays[member]
    return _load(path)


def _load(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error}") from error


def _archive(path: str) -> dict[str, Any]:
    found = _load(path)
    if not isinstance(found, np.lib.npyio.NpzFile):
        raise InvalidArgumentError(f"{path} is no archive of arrays")
    try:
        with found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError) as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error}") from error


def _from_json(name: str, text: str, slot: Slot | None) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        if slot is not None and slot.kind == "constant" and isinstance(slot.value, str):
            return text
        raise InvalidArgumentError(
            f"--input {name}={text}: neither JSON nor a file that ends with .npy or .npz"
        ) from None
    if slot is None or slot.kind != "tensor":
        return value
    try:
        return np.asarray(value, _DTYPES.get(slot.dtype))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"--input {name}={text}: {error}") from error


def write_results(path: str | os.PathLike[str], results: Mapping[str, Any]) -> None:
    """Writes results to an ``.npz``, or a single one to an ``.npy``; what was there stays until the new file is whole.

    Raises:
        SavedFileError: there is something that numpy's files cannot hold, or the file cannot be written.
    """
    target = Path(path)
    arrays = {name: np.asarray(value) for name, value in results.items() if value is not None}
    if target.suffix not in (".npy", ".npz"):
        raise SavedFileError(f"--output {target}: a file that ends with .npz, or .npy for one result")
    if target.suffix == ".npy" and len(arrays) != 1:
        raise SavedFileError(f"--output {target}: there are {len(arrays)} results, so it has to end with .npz")
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            try:
                if target.suffix == ".npy":
                    np.save(file, next(iter(arrays.values())), allow_pickle=False)
                else:
                    np.savez(file, **arrays)  # type: ignore[arg-type]
                file.close()
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise
    except (OSError, ValueError) as error:
        raise SavedFileError(f"{target} cannot be written: {error}") from error


def summary(value: Any) -> dict[str, Any]:
    """A result in a few words, for JSON: dtype, sizes, and the smallest and largest number."""
    if value is None:
        return {"value": None}
    array = np.asarray(value)
    found: dict[str, Any] = {"dtype": str(array.dtype), "sizes": list(array.shape)}
    if array.size == 1:
        found["value"] = array.reshape(-1)[0].item() if array.dtype.kind != "c" else str(array.reshape(-1)[0])
    elif array.size and array.dtype.kind in "biuf":
        found |= {"min": array.min().item(), "max": array.max().item()}
    return found
