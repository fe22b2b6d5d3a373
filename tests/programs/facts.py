"""Facts about tensors that decide whether PyTorch defines what a statement does with them.

A program must have one right outcome. Overlapping writes, conversions that do not fit, discrete functions of rounded
numbers and the bits of a NaN have none; the strategies ask here and leave them out.
"""

from __future__ import annotations

import numpy
import torch

EXACT_LIMIT = 1 << 12
EXACT_FRACTION = 64
"""A number below the limit that is a multiple of the fraction is taken for one that no rounding has touched."""


def is_number(t: torch.Tensor) -> bool:
    """Whether it is no truth value."""
    return t.dtype is not torch.bool


def is_real(t: torch.Tensor) -> bool:
    """Whether its numbers can be ordered."""
    return not t.dtype.is_complex


def is_inexact(t: torch.Tensor) -> bool:
    """Whether it holds floating-point or complex numbers."""
    return t.dtype.is_floating_point or t.dtype.is_complex


def is_integral(t: torch.Tensor) -> bool:
    """Whether it holds integers or truth values."""
    return not is_inexact(t)


def has_elements(t: torch.Tensor) -> bool:
    """Whether there are any."""
    return t.numel() > 0


def cells(t: torch.Tensor) -> numpy.ndarray:
    """The position of each element in the storage, in elements of the dtype."""
    positions = numpy.array([t.storage_offset()])
    for size, stride in zip(t.shape, t.stride(), strict=True):
        positions = (positions[:, None] + numpy.arange(size) * stride).ravel()
    return positions


def addresses(t: torch.Tensor) -> set[int]:
    """The bytes of the storage that belong to the tensor."""
    width = t.element_size()
    return {int(c) * width + i for c in cells(t) for i in range(width)}


def overlaps_itself(t: torch.Tensor) -> bool:
    """Whether two elements are one in memory."""
    positions = cells(t)
    return len(numpy.unique(positions)) < len(positions)


def is_expanded(t: torch.Tensor) -> bool:
    """Whether elements are one in memory because of strides of zero, and only because of them: eager sees that."""
    kept = [i for i, (n, s) in enumerate(zip(t.shape, t.stride(), strict=True)) if n > 1 and s != 0]
    if all(n < 2 or s != 0 for n, s in zip(t.shape, t.stride(), strict=True)):
        return False
    return not overlaps_itself(t.as_strided([t.shape[i] for i in kept], [t.stride(i) for i in kept]))


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both live in one storage."""
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both are the same elements in the same order."""
    return (
        shares_storage(a, b)
        and a.dtype is b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
    )


def are_apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether they have no byte in common."""
    return not shares_storage(a, b) or not addresses(a) & addresses(b)


def fills_its_storage(t: torch.Tensor) -> bool:
    """Whether every element of the storage is one of the tensor's, once."""
    return t.untyped_storage().nbytes() == t.numel() * t.element_size() and not overlaps_itself(t)


def is_plain(t: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory, so that eager sees every overlap with it."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(t))


def is_exact(t: torch.Tensor) -> bool:
    """Whether no rounding can have touched its numbers, so that a discrete function of them has one outcome."""
    if is_integral(t):
        return True
    numbers = torch.view_as_real(t.detach().resolve_conj()) if t.dtype.is_complex else t.detach()
    numbers = numbers.double() * EXACT_FRACTION
    return bool(((numbers == numbers.round()) & (numbers.abs() < EXACT_LIMIT * EXACT_FRACTION)).all())


def is_distinct(t: torch.Tensor) -> bool:
    """Whether all its numbers differ, so that an order of them has no ties."""
    return t.numel() == t.detach().unique().numel()


def fits(t: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the conversion of its numbers to ``dtype`` is defined and has one outcome."""
    if is_integral(t) or dtype.is_floating_point or dtype.is_complex:
        return True
    if not is_exact(t):
        return False
    if dtype is torch.bool:
        return True
    numbers = t.detach().resolve_conj()
    numbers = (numbers.real if t.dtype.is_complex else numbers).double()
    if not has_elements(numbers):
        return True
    limits = torch.iinfo(dtype)
    return bool(numbers.min() >= limits.min and numbers.max() <= limits.max)
