"""Results in the layout that the graph promises, and ``as_strided`` by value."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchport.backend.data import BackendData
from torchport.backend.device import BackendDevice
from torchport.ir.shape import Shape


def is_dense(shape: Shape) -> bool:
    """Whether the strides are those of some permutation of a row-major layout: no gaps, no overlap."""
    expected = 1
    for size, stride in sorted(zip(shape.sizes, shape.strides, strict=True), key=lambda d: (d[1], d[0])):
        if size == 0:
            return True
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def concrete(shape: Shape) -> Shape:
    """The same shape with no size marked symbolic: what a value has."""
    return Shape(shape.dtype, shape.sizes, shape.strides) if any(shape.symbolic) else shape


def shape_of(tensor: torch.Tensor) -> Shape:
    """The shape that a tensor has."""
    return Shape(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))


def in_layout(tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor with these strides: a view where only strides of sizes 0 and 1 differ, else a copy."""
    if tensor.numel() == 0 or all(n == 1 or a == b for n, a, b in zip(sizes, tensor.stride(), strides, strict=True)):
        return tensor.as_strided(sizes, strides, tensor.storage_offset())
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def result_maker(device: BackendDevice) -> Callable[[torch.Tensor, Shape], BackendData]:
    """A function that wraps a result: ``(tensor, promised shape) → BackendData``.

    Where the sizes are the promised ones, the strides are made so too: whoever reads the result through views of its
    storage relies on them. Where they differ (an operator whose output size depends on values), or the promised layout
    overlaps itself, the data has the tensor's own shape.
    """

    def result(tensor: torch.Tensor, shape: Shape) -> BackendData:
        if tensor.shape != shape.sizes or tensor.dtype is not shape.dtype:
            return BackendData(device, shape_of(tensor), tensor)
        if tensor.stride() != shape.strides:
            if not is_dense(shape):
                return BackendData(device, shape_of(tensor), tensor)
            tensor = in_layout(tensor, shape.sizes, shape.strides)
        return BackendData(device, shape, tensor)

    return result


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with no pending conjugation or negation: a result is plain memory."""
    return tensor.resolve_conj().resolve_neg()


def reinterpreted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``aten.view.dtype`` of any value: it asks for a layout, and only the elements matter, in row-major order."""
    if x.dtype.itemsize != dtype.itemsize and not (x.is_contiguous() and x.storage_offset() == 0):
        x = x.clone(memory_format=torch.contiguous_format)
    return x.view(dtype)


def as_strided_in(shape: Shape) -> Callable[..., torch.Tensor]:
    """``aten.as_strided`` on an operand that the trace saw in this layout.

    A value has no offset and no storage around it, so ``storage_offset`` counts from the operand's first element.
    """
    sizes, strides = shape.sizes, shape.strides

    def as_strided(
        x: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], storage_offset: int | None = None
    ) -> torch.Tensor:
        if x.stride() != strides:
            x = in_layout(x, sizes, strides)
        return x.as_strided(size, stride, x.storage_offset() + (storage_offset or 0))

    return as_strided


def as_strided_scatter_in(shape: Shape) -> Callable[..., torch.Tensor]:
    """``aten.as_strided_scatter`` on an operand that the trace saw in this layout; offsets as there."""
    sizes, strides = shape.sizes, shape.strides

    def as_strided_scatter(
        x: torch.Tensor,
        src: torch.Tensor,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        storage_offset: int | None = None,
    ) -> torch.Tensor:
        written = torch.empty_strided(sizes, strides, dtype=x.dtype, device=x.device).copy_(x)
        written.as_strided(size, stride, storage_offset or 0).copy_(src)
        return written

    return as_strided_scatter
