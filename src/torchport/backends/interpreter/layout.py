"""Results in the layout that the graph promises, and ``as_strided`` by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchport.backend.data import BackendData
from torchport.backend.device import BackendDevice
from torchport.backends.interpreter.memory import HELD
from torchport.ir.call import Call, Operand
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
    """The same shape with no size marked as depending on values; symbols stay."""
    if True not in shape.symbolic:
        return shape
    return Shape(shape.dtype, shape.sizes, shape.strides, tuple(f is not True and f for f in shape.symbolic))


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
    overlaps itself, the data has the tensor's own shape. The sizes of a shape with symbols are the tensor's.
    """
    note = HELD.note

    def result(tensor: torch.Tensor, shape: Shape) -> BackendData:
        if any(shape.symbolic):
            shape = actual_shape(tensor, shape)
        if tensor.shape != shape.sizes or tensor.dtype is not shape.dtype:
            shape = shape_of(tensor)
        elif tensor.stride() != shape.strides:
            if is_dense(shape):
                tensor = in_layout(tensor, shape.sizes, shape.strides)
            else:
                shape = shape_of(tensor)
        note(tensor)
        return BackendData(device, shape, tensor)

    return result


def actual_shape(tensor: torch.Tensor, shape: Shape) -> Shape:
    """The shape that a promised shape with symbols comes to for this tensor."""
    return shape_of(tensor) if shape.dense_order is None else shape.with_sizes(tuple(tensor.shape))


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with no pending conjugation or negation: a result is plain memory."""
    return tensor.resolve_conj().resolve_neg()


def reinterpreted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``aten.view.dtype`` of any value: it asks for a layout, and only the elements matter, in row-major order.

    Nor may memory be left over: PyTorch's scatters of slices fail on that (``clone_preserve_strides`` in
    aten/src/ATen/native/TensorShape.cpp).
    """
    if x.dtype.itemsize != dtype.itemsize and not (
        x.is_contiguous() and x.storage_offset() == 0 and x.untyped_storage().nbytes() % dtype.itemsize == 0
    ):
        x = x.clone(memory_format=torch.contiguous_format)
    return x.view(dtype)


def laid_out(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The tensor in the layout that the trace saw, or what it comes to for the tensor's sizes."""
    if any(shape.symbolic):
        shape = shape.with_sizes(tuple(x.shape))
    return x if x.stride() == shape.strides else in_layout(x, shape.sizes, shape.strides)


def empty_in_layout(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """A new tensor of the same dtype, in the layout that the trace saw, or what it comes to for the tensor's sizes."""
    if any(shape.symbolic):
        shape = shape.with_sizes(tuple(x.shape))
    return torch.empty_strided(shape.sizes, shape.strides, dtype=x.dtype, device=x.device)


def operands_laid_out(function: Callable[..., Any], call: Call) -> Callable[..., Any]:
    """A function that draws random numbers, given its operands in the layouts that the trace saw.

    Its result has its operand's layout, and numbers are drawn in an order that depends on that.
    """
    shapes = {i: call.inputs[a.index] for i, a in enumerate(call.args) if type(a) is Operand}
    if all(len(shape.sizes) < 2 for shape in shapes.values()):
        return function
    for shape in shapes.values():
        check_follows(shape)

    def on_laid_out(*args: Any, **kwargs: Any) -> Any:
        return function(*[laid_out(a, shapes[i]) if i in shapes else a for i, a in enumerate(args)], **kwargs)

    return on_laid_out


def as_strided_in(shape: Shape) -> Callable[..., torch.Tensor]:
    """``aten.as_strided`` on an operand that the trace saw in this layout.

    A value has no offset and no storage around it, so ``storage_offset`` counts from the operand's first element.

    Raises:
        ValueError: the layout's sizes are symbolic, and its strides do not follow from them.
    """
    check_follows(shape)

    def as_strided(
        x: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], storage_offset: int | None = None
    ) -> torch.Tensor:
        x = laid_out(x, shape)
        return x.as_strided(size, stride, x.storage_offset() + (storage_offset or 0))

    return as_strided


def as_strided_scatter_in(shape: Shape) -> Callable[..., torch.Tensor]:
    """``aten.as_strided_scatter`` on an operand that the trace saw in this layout; offsets and errors as there."""
    check_follows(shape)

    def as_strided_scatter(
        x: torch.Tensor,
        src: torch.Tensor,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        storage_offset: int | None = None,
    ) -> torch.Tensor:
        written = empty_in_layout(x, shape).copy_(x)
        written.as_strided(size, stride, storage_offset or 0).copy_(src)
        return written

    return as_strided_scatter


def check_follows(shape: Shape) -> None:
    """Refuses a layout of symbolic sizes whose strides do not follow from them (ValueError)."""
    if any(shape.symbolic):
        shape.with_sizes(shape.sizes)
