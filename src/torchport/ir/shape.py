"""What is known of a tensor before it has a value: scalar type, sizes, strides."""

from __future__ import annotations

import math
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch

_DTYPE_SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "b8",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype in the text form: ``f32``, ``i64``, ``b8``, …"""
    return _DTYPE_SHORT.get(dtype) or str(dtype).removeprefix("torch.")


def contiguous_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements, as ``torch.empty(sizes).stride()`` has them."""
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(sizes[i + 1], 1)
    return tuple(strides)


class Shape:
    """Scalar type, sizes, strides, and which sizes are symbolic. Interned: equal shapes are one object.

    Args:
        dtype: the scalar type.
        sizes: in elements.
        strides: in elements; row-major when left out.
        symbolic: one flag per size; all ``False`` when left out.

    Invariant: ``Shape(d, s) is Shape(d, s)`` (tests/unit/test_shape.py), so equality and hash are those of identity.
    """

    __slots__ = ("__weakref__", "dtype", "is_complex", "sizes", "strides", "symbolic")
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    symbolic: tuple[bool, ...]
    is_complex: bool

    _interned: ClassVar[WeakValueDictionary[tuple[Any, ...], Shape]] = WeakValueDictionary()

    def __new__(
        cls,
        dtype: torch.dtype,
        sizes: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        symbolic: tuple[bool, ...] | None = None,
    ) -> Shape:
        """The one object with these values."""
        sizes = tuple(sizes)
        strides = contiguous_strides(sizes) if strides is None else tuple(strides)
        symbolic = (False,) * len(sizes) if symbolic is None else tuple(symbolic)
        key = (dtype, sizes, strides, symbolic)
        found = cls._interned.get(key)
        if found is not None:
            return found
        if not len(sizes) == len(strides) == len(symbolic):
            raise ValueError(
                f"Shape: {len(sizes)} sizes, {len(strides)} strides and {len(symbolic)} symbolic flags; "
                "they must be as many"
            )
        self = object.__new__(cls)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "symbolic", symbolic)
        object.__setattr__(self, "is_complex", dtype.is_complex)
        return cls._interned.setdefault(key, self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Shape is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Shape, (self.dtype, self.sizes, self.strides, self.symbolic))

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """The bytes that the elements take, without gaps."""
        return self.numel * self.dtype.itemsize

    @property
    def storage_numel(self) -> int:
        """The elements that a storage needs to hold this layout at offset 0."""
        if 0 in self.sizes:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """Whether the strides are row-major (strides of size 1 do not count, and none does without elements)."""
        return 0 in self.sizes or all(
            n <= 1 or s == c for n, s, c in zip(self.sizes, self.strides, contiguous_strides(self.sizes), strict=True)
        )

    def __repr__(self) -> str:
        """As in the text form: ``f32[3, 4]``, with strides in braces where they are not row-major."""
        dims = ", ".join(f"?{n}" if sym else str(n) for n, sym in zip(self.sizes, self.symbolic, strict=True))
        text = f"{dtype_name(self.dtype)}[{dims}]"
        if self.strides != contiguous_strides(self.sizes):
            text += "{" + ", ".join(map(str, self.strides)) + "}"
        return text
