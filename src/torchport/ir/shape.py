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


def find_dtype(name: str) -> torch.dtype:
    """The dtype of a short name.

    Raises:
        ValueError: there is none.
    """
    for dtype, short in _DTYPE_SHORT.items():
        if short == name:
            return dtype
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


def contiguous_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements, as ``torch.empty(sizes).stride()`` has them."""
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(sizes[i + 1], 1)
    return tuple(strides)


def strides_in_order(sizes: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of elements without gaps, with the dimensions in this order from the slowest to the fastest."""
    strides = [1] * len(sizes)
    step = 1
    for d in reversed(order):
        strides[d] = step
        step *= max(sizes[d], 1)
    return tuple(strides)


def _dense_order(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    order = tuple(sorted(range(len(sizes)), key=lambda d: (-strides[d], sizes[d] == 1, d)))
    follows = strides_in_order(sizes, order)
    dense = 0 in sizes or all(n == 1 or a == b for n, a, b in zip(sizes, strides, follows, strict=True))
    return order if dense else None


def _size_text(size: int, symbolic: bool | str) -> str:
    return f"{symbolic}={size}" if isinstance(symbolic, str) else f"?{size}" if symbolic else str(size)


class Shape:
    """Scalar type, sizes, strides, and which sizes are symbolic. Interned: equal shapes are one object.

    Args:
        dtype: the scalar type.
        sizes: in elements.
        strides: in elements; row-major when left out.
        symbolic: for each size ``False``, ``True`` when it depends on values, or the name of its symbol: sizes of one
            name are equal throughout a graph, whatever they are. All ``False`` when left out.

    Attributes:
        dense_order: the dimensions from the slowest to the fastest, where the strides are those of elements without
            gaps in this order (those of sizes 1 do not count); else ``None``.

    Invariant: ``Shape(d, s) is Shape(d, s)`` (tests/unit/test_shape.py), so equality and hash are those of identity.
    """

    __slots__ = ("__weakref__", "dense_order", "dtype", "is_complex", "sizes", "strides", "symbolic")
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    symbolic: tuple[bool | str, ...]
    is_complex: bool
    dense_order: tuple[int, ...] | None

    _interned: ClassVar[WeakValueDictionary[tuple[Any, ...], Shape]] = WeakValueDictionary()

    def __new__(
        cls,
        dtype: torch.dtype,
        sizes: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        symbolic: tuple[bool | str, ...] | None = None,
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
        object.__setattr__(self, "dense_order", _dense_order(sizes, strides))
        return cls._interned.setdefault(key, self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Shape is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Shape, (self.dtype, self.sizes, self.strides, self.symbolic))

    def with_sizes(self, sizes: tuple[int, ...]) -> Shape:
        """A concrete shape of the same scalar type and order of dimensions.

        Raises:
            ValueError: the layout has gaps or overlaps, so strides do not follow from sizes.
        """
        if self.dense_order is None:
            raise ValueError(f"{self!r} has no dense layout that other sizes could have")
        return Shape(self.dtype, sizes, strides_in_order(sizes, self.dense_order))

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
        """As in the text form: ``f32[3, s0=4]``, with strides in braces where they are not row-major."""
        dims = ", ".join(map(_size_text, self.sizes, self.symbolic))
        text = f"{dtype_name(self.dtype)}[{dims}]"
        if self.strides != contiguous_strides(self.sizes):
            text += "{" + ", ".join(map(str, self.strides)) + "}"
        return text
