"""Weights in the safetensors format, read where the file is mapped.

The library of that name reads from a path of its own, or copies; here the tensors are a member of a larger file, at a
multiple of 64 bytes, so the format is read in place. Source: the format's specification,
https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from torchport_runtime.errors import DamagedFileError

ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
    "C128": 16,
}
"""The format's names of scalar types, and their bytes. (``C128`` is ours: the format has no name for it yet.)"""
_ALIGNMENT = 64
_PADDING = "__padding_"
_MOST_HEADER_BYTES = 100_000_000
"""The format's own bound."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """The bytes of a tensor, row-major.

    Attributes:
        dtype: the format's name of the scalar type.
        sizes: of each dimension.
        data: the bytes.
    """

    dtype: str
    sizes: tuple[int, ...]
    data: memoryview


def write_weights(tensors: Mapping[str, RawTensor]) -> tuple[Iterator[bytes | memoryview], int]:
    """The pieces of a member with these tensors, and how many bytes they are in all."""
    # The format wants no gaps between tensors, so what fills one up is a tensor of bytes of its own.
    entries: dict[str, object] = {}
    end = 0

    def add(name: str, dtype: str, sizes: list[int], count: int) -> None:
        nonlocal end
        entries[name] = {"dtype": dtype, "shape": sizes, "data_offsets": [end, end + count]}
        end += count

    for name, tensor in tensors.items():
        add(name, tensor.dtype, list(tensor.sizes), tensor.data.nbytes)
        padding = -end % _ALIGNMENT
        if padding:
            add(f"{_PADDING}{len(entries)}", "U8", [padding], padding)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)

    def pieces() -> Iterator[bytes | memoryview]:
        yield len(text).to_bytes(8, "little") + text
        for tensor in tensors.values():
            yield tensor.data
            yield bytes(-tensor.data.nbytes % _ALIGNMENT)

    return pieces(), 8 + len(text) + end


def read_weights(member: memoryview) -> dict[str, RawTensor]:
    """The tensors of a member; nothing is copied.

    Raises:
        DamagedFileError: the member is not of the format.
    """
    if member.nbytes < 8:
        _fail("it has no header")
    length = int.from_bytes(member[:8], "little")
    if length > min(member.nbytes - 8, _MOST_HEADER_BYTES):
        _fail(f"its header would have {length} bytes")
    try:
        header = json.loads(bytes(member[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        _fail(f"its header is not JSON: {error}")
    if not isinstance(header, dict):
        _fail("its header is no object")
    data = member[8 + length :]
    found: dict[str, RawTensor] = {}
    expected = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor, start = _tensor(name, entry, data)
        if start != expected:
            _fail(f"{name!r} does not begin where the one before it ends")
        expected += tensor.data.nbytes
        if not name.startswith(_PADDING):
            found[name] = tensor
    if expected != data.nbytes:
        _fail("bytes follow the last tensor")
    return found


def _tensor(name: str, entry: object, data: memoryview) -> tuple[RawTensor, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _fail(f"{name!r} has no dtype, shape and data_offsets")
    dtype, sizes, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in ITEM_BYTES:
        _fail(f"{name!r} is of {dtype!r}")
    for numbers in (sizes, offsets):
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
            _fail(f"{name!r} has a size or an offset that is no whole number")
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= data.nbytes:
        _fail(f"{name!r} lies outside")
    if offsets[1] - offsets[0] != math.prod(sizes) * ITEM_BYTES[dtype]:
        _fail(f"{name!r} has {offsets[1] - offsets[0]} bytes, which are not {sizes} of {dtype}")
    return RawTensor(dtype, tuple(sizes), data[offsets[0] : offsets[1]]), offsets[0]


def _fail(why: str) -> NoReturn:
    raise DamagedFileError(f"weights.safetensors cannot be read: {why}. Copy the file again.")
