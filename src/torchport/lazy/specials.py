"""Kernels that no rule covers: making memory, moving data, metadata, and operators whose schema hides what they do.

Metadata operators have kernels in PyTorch that work on any storage but are registered for the CPU only; ours call
those.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchport import metrics
from torchport.backend import Shape, Value
from torchport.ir.call import Call, number, operand
from torchport.lazy import active
from torchport.lazy.attention import fused_sdp_choice
from torchport.lazy.number_ranges import check_fill
from torchport.lazy.reading import host_tensor
from torchport.lazy.recording import cut_if_due, read, upload, with_bits, write
from torchport.lazy.schema import describe
from torchport.lazy.source import user_location
from torchport.lazy.tensor import dense_shape, is_dense, lazy_tensor_of, new_strided, new_tensor
from torchport.lazy.trace import LOCK
from torchport.lazy.write_probe import is_aliased, is_expanded, probe_writes

aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

METADATA_OPERATORS = (
    "as_strided",
    "view",
    "_reshape_alias",
    "unfold",
    "view_as_real",
    "view_as_complex",
    "set_.source_Storage_storage_offset",
    "set_.source_Storage",
    "set_.source_Tensor",
    "is_set_to",
)


def metadata_kernel(op: Any) -> Callable[..., Any]:
    """PyTorch's own kernel for a CPU tensor, which touches sizes, strides and offset only."""
    redispatch = op._handle.redispatch_boxed

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(_CPU, *args, **kwargs)

    return kernel


def _strides_for(sizes: tuple[int, ...], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    return torch.empty(sizes, device="meta", memory_format=memory_format or torch.contiguous_format).stride()


def empty_memory_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """``aten::empty.memory_format``: memory that has no contents until it is written."""
    active.check_device(device)
    sizes = tuple(size)
    with LOCK:
        return new_tensor(Shape(dtype or torch.get_default_dtype(), sizes, _strides_for(sizes, memory_format)), None)


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """``aten::empty_strided``."""
    active.check_device(device)
    with LOCK:
        return new_strided(tuple(size), tuple(stride), dtype or torch.get_default_dtype())


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``aten::copy_``, within the device, to it and from it."""
    if self.device.type != active.device_type:
        self.copy_(_to_host(src))
        return self
    with LOCK:
        if is_expanded(self) or (is_aliased((src,), self) and not self.numel() == src.numel() == 1):
            probe_writes(describe(aten.copy_.default), (self, src), {})
        if src.device.type != active.device_type:
            if self.numel() == 0:
                src.expand(self.shape)
                return self
            _check_broadcast(src, self)
            host = src.detach().to(device="cpu", dtype=self.dtype)
            value, shape = upload(host)
        else:
            value, shape = read(src)
            metrics.increment("lazy::copy")
            if shape.dtype is not self.dtype:
                value = _cast(value, self.dtype)
        if shape.sizes != tuple(self.shape):
            _check_broadcast(src, self)
            value = _broadcast(value, shape.sizes, tuple(self.shape))
        write(self, with_bits(self, value))
        if active.trace.operations >= active.max_pending():
            active.cut_due = True
            cut_if_due()
    return self


def _cast(value: Value, dtype: torch.dtype) -> Value:
    return Value(active.trace.add_node(active.builder().make_cast(value, dtype, user_location())))


def _broadcast(value: Value, sizes: tuple[int, ...], target: tuple[int, ...]) -> Value:
    while len(sizes) > len(target):
        # copy_ drops leading dimensions of size 1.
        shape = Shape(value.shape.dtype, sizes)
        out = Shape(shape.dtype, sizes[1:])
        call = Call(aten.view.default, (operand(0), sizes[1:]), (), (shape,), (out,))
        value = Value(active.trace.add(active.builder(), call, (value,)))
        sizes = sizes[1:]
    if sizes != target:
        value = Value(active.trace.add_node(active.builder().make_expand(value, target, user_location())))
    return value


def _check_broadcast(src: torch.Tensor, self: torch.Tensor) -> None:
    try:
        torch.empty(self.shape, device="meta").copy_(torch.empty(src.shape, device="meta"))
    except RuntimeError:
        # The CPU's text; it looks at the sizes before it touches memory.
        torch.empty(self.shape).copy_(torch.empty(src.shape))
        raise


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    host = host_tensor(tensor, lazy_tensor_of(tensor))
    if tensor.is_conj():
        host = host.conj_physical()
    return -host if tensor.is_neg() else host


def to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """``aten::_to_copy``: between devices, dtypes and memory formats."""
    active.check_device(device if device is not None and device.type == active.device_type else None)
    target = active.device_type if device is None and self.device.type == active.device_type else device
    target_type = target if isinstance(target, str) else target.type if target is not None else self.device.type
    if self.device.type == active.device_type and target_type != active.device_type:
        host = _to_host(self)
        return host.to(device=device, dtype=dtype, memory_format=memory_format or torch.preserve_format)
    if self.device.type != active.device_type:
        host = self.detach().to(device="cpu", dtype=dtype)
        shape = _like(host, host.dtype, memory_format)
        with LOCK:
            value, shape = upload(host, shape)
            return new_tensor(shape, value)
    with LOCK:
        value, shape = read(self)
        out = _like(self, dtype or self.dtype, memory_format)
        metrics.increment("lazy::_to_copy")
        if out.dtype is not shape.dtype:
            value = _cast(value, out.dtype)
        return new_tensor(out, _laid_out(value, shape, out))


def _like(tensor: torch.Tensor, dtype: torch.dtype, memory_format: torch.memory_format | None) -> Shape:
    own = Shape(dtype, tuple(tensor.shape), tensor.stride())
    if memory_format in (None, torch.preserve_format) and tensor.numel() and is_dense(own):
        return own
    # The two differ for tensors without elements, where the CPU's layout costs nothing to ask for.
    device = "meta" if tensor.numel() else "cpu"
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    like = torch.empty_like(meta, dtype=dtype, memory_format=memory_format or torch.preserve_format)
    return dense_shape(Shape(dtype, tuple(like.shape), like.stride()))


def _laid_out(value: Value, shape: Shape, out: Shape) -> Value:
    """A value, copied into another layout where that changes; layouts are for speed, values have none."""
    if out.strides == shape.strides or not (out.is_contiguous and is_dense(out)):
        return value
    call = Call(
        aten.clone.default,
        (operand(0),),
        (("memory_format", torch.contiguous_format),),
        (Shape(out.dtype, shape.sizes, shape.strides),),
        (out,),
    )
    return Value(active.trace.add(active.builder(), call, (value,), (), user_location()))


def clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """``aten::clone``: a storage of its own with the same contents, which costs nothing until one is written."""
    with LOCK:
        value, shape = read(self)
        metrics.increment("lazy::clone")
        out = _like(self, self.dtype, memory_format)
        return new_tensor(out, _laid_out(value, shape, out))


def fill_scalar(self: torch.Tensor, value: bool | int | float | complex) -> torch.Tensor:
    """``aten::fill_.Scalar``: new contents that do not depend on the old ones."""
    if is_expanded(self):
        probe_writes(describe(aten.fill_.Scalar), (self, value), {})
    check_fill(tuple(self.shape), self.dtype, value)
    with LOCK:
        sizes = tuple(self.shape)
        call = _full_call(sizes, self.dtype, type(value))
        metrics.increment("lazy::fill")
        write(self, Value(active.trace.add(active.builder(), call, (), (value,), user_location())))
    return self


def zero_(self: torch.Tensor) -> torch.Tensor:
    """``aten::zero_``."""
    return fill_scalar(self, 0)


def _full_call(sizes: tuple[int, ...], dtype: torch.dtype, kind: type) -> Call:
    key = (sizes, dtype, kind)
    call = _full_calls.get(key)
    if call is None:
        if len(_full_calls) > 1 << 14:
            _full_calls.clear()
        args = (sizes, number(0, kind))
        call = _full_calls[key] = Call(aten.full.default, args, (("dtype", dtype),), (), (Shape(dtype, sizes),))
    return call


_full_calls: dict[Any, Call] = {}


def local_scalar_dense(self: torch.Tensor) -> Any:
    """``aten::_local_scalar_dense``: ``.item()`` and its kin."""
    return _to_host(self).item()


def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """``aten::equal``."""
    if self.shape != other.shape:
        return False
    return bool(torch.eq(self, other).all().item())


def resize_(
    self: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """``aten::resize_``: within the storage where it fits, else into a larger one that starts with the old contents."""
    sizes = tuple(size)
    if memory_format is torch.preserve_format:
        raise RuntimeError(f"Unsupported memory format {memory_format}")
    if sizes == tuple(self.shape) and memory_format is None:
        return self
    return _resize_to(self, sizes, _strides_for(sizes, memory_format))


def _resize_to(self: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    needed = Shape(self.dtype, sizes, strides).storage_numel + int(self.storage_offset())
    storage = self.untyped_storage()
    if needed * self.dtype.itemsize > storage.nbytes():
        with LOCK:
            lazy = lazy_tensor_of(self)
            old_numel = storage.nbytes() // self.dtype.itemsize
            grown = new_tensor(Shape(self.dtype, (needed,)), None)
            if lazy.value is not None and old_numel:
                old = aten.set_.source_Storage_storage_offset(
                    new_tensor(Shape(self.dtype, (0,)), None), storage, 0, [old_numel], [1]
                )
                copy_(aten.as_strided.default(grown, [old_numel], [1], 0), old)
            storage = grown.untyped_storage()
    return aten.set_.source_Storage_storage_offset(self, storage, self.storage_offset(), sizes, strides)  # type: ignore[no-any-return]


def set_(self: torch.Tensor) -> torch.Tensor:
    """``aten::set_``: a storage of its own, without elements."""
    with LOCK:
        storage = new_tensor(Shape(self.dtype, (0,)), None).untyped_storage()
    return aten.set_.source_Storage_storage_offset(self, storage, 0, [0], [1])  # type: ignore[no-any-return]


def resize_output_(
    self: torch.Tensor, size: Sequence[int], device: torch.device, strides: tuple[int, ...] | None = None
) -> torch.Tensor:
    """``aten::_resize_output_``: makes room for a result, with eager's warning when there was another one.

    Args:
        self: the tensor.
        size: its new sizes.
        device: the operator's argument, not used.
        strides: its new strides; row-major by default, where the sizes change.
    """
    changes = tuple(self.shape) != tuple(size)
    if changes and self.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(self.shape)}, which does "
            f"not match the required output shape {list(size)}. This behavior is deprecated, and in a future "
            "PyTorch release outputs will not be resized unless they have zero elements. You can explicitly reuse "
            "an out tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
            UserWarning,
            stacklevel=2,
        )
    if strides is not None:
        _resize_to(self, tuple(size), strides)
    elif changes:
        resize_(self, size)
    return self


def native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """``aten::native_batch_norm``, whose schema does not say that it writes the running statistics."""
    if not training or running_mean is None or running_var is None:
        if training:
            return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)
        return aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, running_mean, running_var, momentum, eps
        )
    out, mean, rstd, new_mean, new_var = aten._native_batch_norm_legit_functional.default(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    copy_(running_mean, new_mean)
    copy_(running_var, new_var)
    return out, mean, rstd


def bernoulli_p(self: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """``aten.bernoulli.p``: its numbers are drawn in row-major order, those of the in-place form in the tensor's own.

    Source: ``bernoulli`` in aten/src/ATen/native/Distributions.cpp.
    """
    return torch.empty_like(self, memory_format=torch.contiguous_format).bernoulli_(p, generator=generator)


def polygamma_(self: torch.Tensor, n: int) -> torch.Tensor:
    """``aten::polygamma_``, whose functional form takes its arguments the other way round."""
    return copy_(self, aten.polygamma.default(n, self))


def native_batch_norm_out(
    *args: Any, out: torch.Tensor, save_mean: torch.Tensor, save_invstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``aten::native_batch_norm.out``, which writes the running statistics too."""
    targets = (out, save_mean, save_invstd)
    for target, result in zip(targets, native_batch_norm(*args), strict=True):
        copy_(resize_output_(target, result.shape, target.device), result)
    return targets


def record_stream(self: torch.Tensor, s: torch.Stream) -> None:
    """``aten::record_stream``: nothing to record, since launches run in order on one stream."""


def efficientzerotensor(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """``aten::_efficientzerotensor``: zeros; that they are efficient is for the compiler to find."""
    return zero_(empty_memory_format(size, dtype=dtype, device=device))


def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``aten::_copy_from``."""
    return copy_(dst, self, non_blocking)


SPECIAL_KERNELS: dict[str, Callable[..., Any]] = {
    "empty.memory_format": empty_memory_format,
    "empty_strided": empty_strided,
    "copy_": copy_,
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from,
    "_to_copy": to_copy,
    "clone": clone,
    "fill_.Scalar": fill_scalar,
    "zero_": zero_,
    "_local_scalar_dense": local_scalar_dense,
    "equal": equal,
    "resize_": resize_,
    "set_": set_,
    "_resize_output_": resize_output_,
    "native_batch_norm": native_batch_norm,
    "native_batch_norm.out": native_batch_norm_out,
    "bernoulli.p": bernoulli_p,
    "polygamma_": polygamma_,
    "_fused_sdp_choice": fused_sdp_choice,
    "record_stream": record_stream,
    "_efficientzerotensor": efficientzerotensor,
}
