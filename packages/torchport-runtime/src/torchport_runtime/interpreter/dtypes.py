"""Scalar types in numpy, and PyTorch's rules of promotion.

Source: "Type promotion", https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchport_runtime.errors import UnsupportedOperationError

Array = np.ndarray[Any, Any]

NUMPY = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "c64": np.complex64,
    "c128": np.complex128,
    "b8": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
}
"""Short name → numpy's type. numpy has no bfloat16 and no complex32."""

NAMES = {np.dtype(t): name for name, t in NUMPY.items()}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Numpy's type of a short name.

    Raises:
        UnsupportedOperationError: numpy has no such type.
    """
    found = NUMPY.get(name)
    if found is None:
        raise UnsupportedOperationError(
            f"numpy has no {name}: lower the module in another scalar type, or to a backend that runs all of it"
        )
    return np.dtype(found)


def promoted(operands: Sequence[Any]) -> np.dtype[Any]:
    """The type that tensors and numbers are computed in: tensors with dimensions decide within their category."""
    dimensioned = [x.dtype for x in operands if isinstance(x, np.ndarray) and x.ndim]
    zero = [x.dtype for x in operands if isinstance(x, np.ndarray) and not x.ndim]
    numbers = [_number_dtype(x) for x in operands if not isinstance(x, np.ndarray)]
    found: np.dtype[Any] | None = None
    for group in (dimensioned, zero, numbers):
        if group:
            of_group = group[0]
            for other in group[1:]:
                of_group = _promote(of_group, other)
            if found is None:
                found = of_group
            elif _category(of_group) > _category(found):
                found = _raised(found, of_group, group is numbers)
    assert found is not None
    return found


def _promote(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    if _category(a) != _category(b):
        low, high = sorted((a, b), key=_category)
        if high.kind == "c":
            return np.dtype(np.complex128 if low == np.float64 else high)
        return high  # a float stays as it is beside an integer, however wide
    return np.promote_types(a, b)


def _raised(found: np.dtype[Any], other: np.dtype[Any], is_number: bool) -> np.dtype[Any]:
    if not is_number:
        return _promote(found, other)
    if other.kind == "c":
        return np.dtype(np.complex128 if found == np.float64 else np.complex64)
    return np.dtype(np.float32) if other.kind == "f" else other


def _category(dtype: np.dtype[Any]) -> int:
    return {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}[dtype.kind]


def _number_dtype(value: Any) -> np.dtype[Any]:
    kinds = {bool: np.bool_, int: np.int64, float: np.float32, complex: np.complex64}
    return np.dtype(kinds[type(value)])


def as_float(x: Any) -> Any:
    """An array of a floating type: integers become float32, PyTorch's default."""
    return x.astype(np.float32) if x.dtype.kind in "biu" else x
