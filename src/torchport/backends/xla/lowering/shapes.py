"""Views, which are values here, and other changes of shape; tensors that are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax
from torch import fx

from torchport.backends.xla.lowering.dtypes import result_dtype

_aten = torch.ops.aten


def _sizes(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _slice(node: fx.Node, x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    return x[(slice(None),) * (dim % x.ndim) + (slice(*_bounds(x.shape[dim], start, end), step),)]


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    def clipped(n: int | None, default: int) -> int:
        if n is None:
            return default
        return max(0, min(size, n + size if n < 0 else n))

    return clipped(start, 0), clipped(end, size)


def _slice_scatter(
    node: fx.Node, x: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    place = (slice(None),) * (dim % x.ndim) + (slice(*_bounds(x.shape[dim], start, end), step),)
    return x.at[place].set(src.astype(x.dtype))


def _select(node: fx.Node, x: Any, dim: int, index: int) -> Any:
    return x[(slice(None),) * (dim % x.ndim) + (index,)]


def _pad(node: fx.Node, x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    widths = [(0, 0, 0)] * x.ndim
    for i in range(len(pad) // 2):
        widths[-1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(x, jnp.asarray(value, x.dtype), widths)


def _expand(node: fx.Node, x: Any, size: Sequence[int], implicit: bool = False) -> Any:
    return jnp.broadcast_to(x, _sizes(node))


def _repeat(node: fx.Node, x: Any, repeats: Sequence[int]) -> Any:
    return jnp.tile(jnp.reshape(x, (1,) * (len(repeats) - x.ndim) + x.shape), tuple(repeats))


def _split(node: fx.Node, x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    at, found = 0, []
    for size in sizes:
        found.append(_slice(node, x, dim, at, at + size))
        at += size
    return found


def _cat(node: fx.Node, tensors: Sequence[Any], dim: int = 0) -> Any:
    dtype = result_dtype(node)
    kept = [t.astype(dtype) for t in tensors if t.shape != (0,)] or [jnp.zeros((0,), dtype)]
    return jnp.concatenate(kept, dim)


def _as_strided(
    node: fx.Node, x: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    places = jnp.full((1,) * len(size), storage_offset or 0)
    for d, (n, s) in enumerate(zip(size, stride, strict=True)):
        places = places + jnp.arange(n).reshape([-1 if i == d else 1 for i in range(len(size))]) * s
    return jnp.ravel(x)[places]


def _arange(node: fx.Node, start: Any, end: Any = None, step: Any = 1, **rest: Any) -> Any:
    dtype = result_dtype(node)
    (count,) = _sizes(node)
    return (jnp.arange(count) * step + start).astype(dtype)


def _iota(node: fx.Node, length: int, *, start: int = 0, step: int = 1, **rest: Any) -> Any:
    return (jnp.arange(length) * step + start).astype(result_dtype(node))


def _full(node: fx.Node, size: Any, value: Any, **rest: Any) -> Any:
    return jnp.full(_sizes(node), value, result_dtype(node))


def _reshape(node: fx.Node, x: Any, size: Sequence[int]) -> Any:
    return jnp.reshape(x, _sizes(node))


def _same(node: fx.Node, x: Any, **rest: Any) -> Any:
    return x


TABLE: dict[Any, Callable[..., Any]] = {
    _aten.alias.default: _same,
    _aten.clone.default: _same,
    _aten.detach.default: _same,
    _aten.copy.default: lambda node, x, src, non_blocking=False: jnp.broadcast_to(src, x.shape).astype(x.dtype),
    _aten.view.default: _reshape,
    _aten.reshape.default: _reshape,
    _aten._unsafe_view.default: _reshape,
    _aten.permute.default: lambda node, x, dims: jnp.transpose(x, [d % x.ndim for d in dims]),
    _aten.transpose.int: lambda node, x, a, b: jnp.swapaxes(x, a, b) if x.ndim else x,
    _aten.t.default: lambda node, x: jnp.transpose(x),
    _aten.unsqueeze.default: lambda node, x, dim: jnp.expand_dims(x, dim),
    _aten.squeeze.dim: _reshape,
    _aten.squeeze.default: lambda node, x: jnp.squeeze(x),
    _aten.expand.default: _expand,
    _aten.repeat.default: _repeat,
    _aten.flip.default: lambda node, x, dims: jnp.flip(x, tuple(dims)),
    _aten.slice.Tensor: _slice,
    _aten.slice_scatter.default: _slice_scatter,
    _aten.select.int: _select,
    _aten.split_with_sizes.default: _split,
    _aten.cat.default: _cat,
    _aten.constant_pad_nd.default: _pad,
    _aten.diagonal.default: lambda node, x, offset=0, dim1=0, dim2=1: jnp.diagonal(x, offset, dim1, dim2),
    _aten.as_strided.default: _as_strided,
    _aten.full.default: _full,
    _aten.full_like.default: _full,
    _aten.empty.memory_format: lambda node, size, **rest: jnp.zeros(_sizes(node), result_dtype(node)),
    _aten.empty_strided.default: lambda node, size, stride, **rest: jnp.zeros(_sizes(node), result_dtype(node)),
    _aten.scalar_tensor.default: lambda node, value, **rest: jnp.asarray(value, result_dtype(node)),
    _aten.arange.start_step: _arange,
    torch.ops.prims.iota.default: _iota,
}
"""By operator."""
