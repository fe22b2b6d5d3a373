"""Matrix products, convolution, pooling, normalisation, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchport_runtime.interpreter.dtypes import Array

Function = Callable[..., Any]


def _addmm(bias: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1) -> Any:
    product = a @ b
    product = product if alpha == 1 else product * a.dtype.type(alpha)
    return product + (bias if beta == 1 else bias * bias.dtype.type(beta))


def _spread(values: Sequence[int], count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


def _windows(x: Array, sizes: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Array:
    """A view ``(…, *positions, *window)`` of the last dimensions."""
    n = len(sizes)
    lead, space = x.shape[: x.ndim - n], x.shape[x.ndim - n :]
    positions = [
        (length - d * (k - 1) - 1) // s + 1 for length, k, s, d in zip(space, sizes, strides, dilation, strict=True)
    ]
    step = x.strides[x.ndim - n :]
    return np.lib.stride_tricks.as_strided(
        x,
        (*lead, *positions, *sizes),
        (
            *x.strides[: x.ndim - n],
            *(t * s for t, s in zip(step, strides, strict=True)),
            *(t * d for t, d in zip(step, dilation, strict=True)),
        ),
        writeable=False,
    )


def _padded(x: Array, padding: Sequence[int], value: Any = 0, extra: Sequence[int] | None = None) -> Array:
    more = extra or [0] * len(padding)
    around = [(0, 0)] * (x.ndim - len(padding)) + [(p, p + e) for p, e in zip(padding, more, strict=True)]
    return np.pad(x, around, constant_values=value) if any(padding) or any(more) else x


def _convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    n = weight.ndim - 2
    stride, padding, dilation = _spread(stride, n), _spread(padding, n), _spread(dilation, n)
    unbatched = x.ndim == n + 1
    x = x[None] if unbatched else x
    if transposed:
        found = _transposed(x, weight, stride, padding, dilation, _spread(output_padding, n), groups)
    else:
        found = _correlated(_padded(x, padding), weight, stride, dilation, groups)
    if bias is not None:
        found = found + bias.reshape(-1, *[1] * n)
    return found[0] if unbatched else found


def _correlated(x: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Any:
    n = weight.ndim - 2
    windows = _windows(x, weight.shape[2:], stride, dilation)  # (batch, channels, *positions, *window)
    inner = tuple(range(windows.ndim - n, windows.ndim))
    parts = []
    for w, part in zip(np.split(weight, groups), np.split(windows, groups, 1), strict=True):
        product = np.tensordot(part, w, ((1, *inner), (1, *range(2, 2 + n))))  # (batch, *positions, channels)
        parts.append(np.moveaxis(product, -1, 1))
    return np.concatenate(parts, 1) if groups > 1 else parts[0]


def _transposed(
    x: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> Any:
    """A correlation with the flipped kernel over the input with gaps between its elements."""
    n = weight.ndim - 2
    gaps = np.zeros((*x.shape[:2], *((k - 1) * s + 1 for k, s in zip(x.shape[2:], stride, strict=True))), x.dtype)
    gaps[(slice(None), slice(None), *(slice(None, None, s) for s in stride))] = x
    edge = [d * (k - 1) - p for d, k, p in zip(dilation, weight.shape[2:], padding, strict=True)]
    around = [(0, 0), (0, 0)] + [(max(e, 0), max(e + o, 0)) for e, o in zip(edge, extra, strict=True)]
    wide = np.pad(gaps, around)
    cut = tuple(slice(max(-e, 0), wide.shape[2 + i] - max(-(e + extra[i]), 0)) for i, e in enumerate(edge))
    wide = wide[(slice(None), slice(None), *cut)]
    flipped = np.flip(weight, tuple(range(2, 2 + n)))
    kernels = np.concatenate([np.swapaxes(w, 0, 1) for w in np.split(flipped, groups)])
    return _correlated(wide, kernels, [1] * n, dilation, groups)


def _max_pool(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[Any]:
    kernel = _spread(kernel, 2)
    stride = _spread(stride or kernel, 2)
    padding, dilation = _spread(padding, 2), _spread(dilation, 2)
    extra = _extra(x, kernel, stride, padding, dilation) if ceil_mode else None
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    windows = _windows(_padded(x, padding, low, extra), kernel, stride, dilation)
    flat = windows.reshape(*windows.shape[:-2], -1)
    at = flat.argmax(-1)
    values = np.take_along_axis(flat, at[..., None], -1)[..., 0]
    row = np.arange(windows.shape[-4])[:, None] * stride[0] + at // kernel[1] * dilation[0] - padding[0]
    column = np.arange(windows.shape[-3]) * stride[1] + at % kernel[1] * dilation[1] - padding[1]
    return [values, row * x.shape[-1] + column]


def _extra(
    x: Array, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """What ``ceil_mode`` adds behind: a window more, if it begins inside of the input or its left padding."""
    found = []
    for length, k, s, p, d in zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True):
        span = length + 2 * p - d * (k - 1) - 1
        count = -(-span // s) + 1
        count -= (count - 1) * s >= length + p
        found.append(max((count - 1) * s + d * (k - 1) + 1 - (length + 2 * p), 0))
    return found


def _avg_pool(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    kernel = _spread(kernel, 2)
    stride, padding = _spread(stride or kernel, 2), _spread(padding, 2)
    extra = _extra(x, kernel, stride, padding, [1, 1]) if ceil_mode else None
    total = _windows(_padded(x, padding, 0, extra), kernel, stride, [1, 1]).sum((-2, -1))
    if divisor_override is not None:
        return (total / divisor_override).astype(x.dtype)
    inside = np.ones(x.shape[-2:], np.float64)
    counted = _padded(inside, padding, 1 if count_include_pad else 0)
    counts = _windows(_padded(counted, [0, 0], 0, extra), kernel, stride, [1, 1]).sum((-2, -1))
    return (total / counts).astype(x.dtype)


def _adaptive_avg_pool(x: Array, sizes: Sequence[int]) -> Any:
    for axis, count in zip((-2, -1), sizes, strict=True):
        length = x.shape[axis]
        parts = [
            np.take(x, range(i * length // count, -(-(i + 1) * length // count)), axis).mean(axis, keepdims=True)
            for i in range(count)
        ]
        x = np.concatenate(parts, axis)
    return x


def _layer_norm(x: Array, sizes: Sequence[int], weight: Array | None, bias: Array | None, eps: float) -> list[Any]:
    axes = tuple(range(x.ndim - len(sizes), x.ndim))
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    mean = wide.mean(axes, keepdims=True)
    rstd = 1 / np.sqrt(wide.var(axes, keepdims=True) + wide.dtype.type(eps))
    found = (wide - mean) * rstd
    found = found if weight is None else found * weight
    found = found if bias is None else found + bias
    return [found.astype(x.dtype), mean, rstd]


def _batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    momentum: float,
    eps: float,
) -> list[Any]:
    shape = (1, -1, *[1] * (x.ndim - 2))
    scale = 1 / np.sqrt(variance + variance.dtype.type(eps))
    found = (x - mean.reshape(shape)) * scale.reshape(shape)
    found = found if weight is None else found * weight.reshape(shape)
    found = found if bias is None else found + bias.reshape(shape)
    nothing = np.zeros(0, x.dtype)
    return [found.astype(x.dtype), nothing, nothing]


def _group_norm(
    x: Array, weight: Array | None, bias: Array | None, n: int, channels: int, length: int, groups: int, eps: float
) -> list[Any]:
    grouped = x.reshape(n, groups, -1)
    mean = grouped.mean(-1)
    rstd = 1 / np.sqrt(grouped.var(-1) + x.dtype.type(eps))
    found = ((grouped - mean[..., None]) * rstd[..., None]).reshape(x.shape)
    shape = (1, channels, *[1] * (x.ndim - 2))
    found = found if weight is None else found * weight.reshape(shape)
    found = found if bias is None else found + bias.reshape(shape)
    return [found.astype(x.dtype), mean, rstd]


def _attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query @ np.swapaxes(key, -1, -2)) * query.dtype.type(factor)
    if is_causal:
        attn_mask = np.tril(np.ones(scores.shape[-2:], bool))
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    top = np.max(scores, -1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return ((weights / np.where(total == 0, 1, total)) @ value).astype(query.dtype)


def _flash_attention(
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> list[Any]:
    return [_attention(query, key, value, attn_mask, 0.0, is_causal, scale), np.zeros(query.shape[:-1], np.float32)]


LAYERS: dict[str, Function] = {
    **{f"aten.{name}.default": np.matmul for name in ("mm", "bmm", "mv", "dot")},
    "aten.addmm.default": _addmm,
    "aten.baddbmm.default": _addmm,
    "aten.convolution.default": _convolution,
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.avg_pool2d.default": _avg_pool,
    "aten._adaptive_avg_pool2d.default": _adaptive_avg_pool,
    "aten.native_layer_norm.default": _layer_norm,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten.native_group_norm.default": _group_norm,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _flash_attention,
    "aten.native_dropout.default": lambda x, p, train: [x, np.ones(x.shape, bool)],
}
"""Operator → its function of arrays and numbers; those that draw random numbers only as they are in evaluation."""
