"""Matrix products, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax
from torch import fx

_aten = torch.ops.aten


def _matmul(node: fx.Node, a: Any, b: Any) -> Any:
    return jnp.matmul(a, b)


def _addmm(node: fx.Node, bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = jnp.matmul(a, b)
    if alpha != 1:
        product = product * jnp.asarray(alpha, product.dtype)
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * jnp.asarray(beta, bias.dtype))


def _tuple(value: Sequence[int] | int, dims: int) -> tuple[int, ...]:
    found = (value,) if isinstance(value, int) else tuple(value)
    return found * dims if len(found) == 1 else found


def _convolution(
    node: fx.Node,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    dims = weight.ndim - 2
    batched = x.ndim == weight.ndim
    x = x if batched else x[None]
    stride, padding, dilation = (_tuple(v, dims) for v in (stride, padding, dilation))
    if transposed:
        output_padding = _tuple(output_padding, dims)
        # A transposed convolution is one of the input with gaps, by the kernel turned round.
        kernel = jnp.flip(weight, tuple(range(2, 2 + dims)))
        kernel = kernel.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        kernel = jnp.swapaxes(kernel, 1, 2).reshape(-1, weight.shape[0] // groups, *weight.shape[2:])
        widths = []
        for i in range(dims):
            low = dilation[i] * (weight.shape[2 + i] - 1) - padding[i]
            widths.append((low, low + output_padding[i]))
        made = lax.conv_general_dilated(
            x, kernel, (1,) * dims, widths, lhs_dilation=stride, rhs_dilation=dilation, feature_group_count=groups
        )
    else:
        made = lax.conv_general_dilated(
            x, weight, stride, [(p, p) for p in padding], rhs_dilation=dilation, feature_group_count=groups
        )
    if bias is not None:
        made = made + bias.reshape((1, -1) + (1,) * dims)
    return made if batched else made[0]


def _window(
    x: Any, out: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any, dims: int
) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int]], tuple[int, ...]]:
    """Sizes, strides, padding and dilation of a window over the last dimensions, such that the result has ``out``."""
    kernel = _tuple(kernel, dims)
    stride = _tuple(stride, dims) if len(tuple(stride) if not isinstance(stride, int) else (stride,)) else kernel
    padding, dilation = _tuple(padding, dims), _tuple(dilation, dims)
    lead = x.ndim - dims
    widths = [(0, 0)] * lead
    for i in range(dims):
        needed = (out[lead + i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1
        widths.append((padding[i], max(needed - x.shape[lead + i] - padding[i], 0)))
    ones = (1,) * lead
    return ones + kernel, ones + stride, widths, ones + dilation


def _max_pool(dims: int) -> Callable[..., Any]:
    def lower(
        node: fx.Node, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
    ) -> Any:
        out = tuple(node.meta["val"][0].shape)
        sizes, strides, widths, dilations = _window(x, out, kernel, stride, padding, dilation, dims)
        spatial = x.shape[-dims:]
        places = jnp.broadcast_to(jnp.arange(math.prod(spatial)).reshape(spatial), x.shape)
        low = -jnp.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).min

        def larger(a: Any, b: Any) -> Any:
            # The first of equal ones, and nan above all, as PyTorch's kernel has it.
            takes = (b[0] > a[0]) | (jnp.isnan(b[0]) & ~jnp.isnan(a[0]))
            takes = takes | ((b[0] == a[0]) & (b[1] < a[1]))
            return jnp.where(takes, b[0], a[0]), jnp.where(takes, b[1], a[1])

        initial = (jnp.asarray(low, x.dtype), jnp.asarray(math.prod(spatial), places.dtype))
        return lax.reduce_window((x, places), initial, larger, sizes, strides, widths, window_dilation=dilations)

    return lower


def _avg_pool(dims: int) -> Callable[..., Any]:
    def lower(
        node: fx.Node,
        x: Any,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> Any:
        out = tuple(node.meta["val"].shape)
        sizes, strides, widths, _ = _window(x, out, kernel, stride, padding, 1, dims)
        padding = _tuple(padding, dims)
        lead = x.ndim - dims
        dtype = jnp.float32 if x.dtype in (jnp.float16, jnp.bfloat16) else x.dtype

        def added(value: Any, borders: Any) -> Any:
            return lax.reduce_window(value, jnp.asarray(0, dtype), lax.add, sizes, strides, borders)

        total = added(x.astype(dtype), widths)
        if divisor is not None:
            return (total / divisor).astype(x.dtype)
        ones = jnp.ones(x.shape, dtype)
        if count_include_pad:
            borders = [(0, 0)] * lead + [(p, p) for p in padding]
            ones = jnp.pad(ones, borders, constant_values=1)
            widths = [(0, max(w[1] - b[1], 0)) for w, b in zip(widths, borders, strict=True)]
        return (total / added(ones, widths)).astype(x.dtype)

    return lower


TABLE: dict[Any, Callable[..., Any]] = {
    _aten.mm.default: _matmul,
    _aten.bmm.default: _matmul,
    _aten.addmm.default: _addmm,
    _aten.convolution.default: _convolution,
    _aten.max_pool2d_with_indices.default: _max_pool(2),
    _aten.max_pool3d_with_indices.default: _max_pool(3),
    _aten.avg_pool2d.default: _avg_pool(2),
    _aten.avg_pool3d.default: _avg_pool(3),
}
"""By operator."""
