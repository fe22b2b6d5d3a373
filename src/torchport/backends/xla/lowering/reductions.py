"""Reductions, scans and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch
from torch import fx

from torchport.backends.xla.lowering.dtypes import result_dtype

_aten = torch.ops.aten


def _dims(x: Any, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(x.ndim))
    return tuple(d % max(x.ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)) if x.ndim else ()


def _wide(x: Any, dtype: Any) -> Any:
    """Half precision is added up in float32, as PyTorch's kernels do."""
    return x.astype(jnp.float32) if dtype in (jnp.float16, jnp.bfloat16) else x.astype(dtype)


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def lower(node: fx.Node, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        to = result_dtype(node)
        return function(_wide(x, to), axis=_dims(x, dim), keepdims=keepdim).astype(to)

    return lower


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, x, *, dtype=None: function(_wide(x, result_dtype(node))).astype(result_dtype(node))


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, x, dim=(), keepdim=False: function(x, axis=_dims(x, dim), keepdims=keepdim)


def _any(node: fx.Node, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.any(x != 0, axis=_dims(x, dim), keepdims=keepdim).astype(result_dtype(node))


def _arg(function: Callable[..., Any]) -> Callable[..., Any]:
    def lower(node: fx.Node, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if not x.ndim:
            return jnp.zeros((), jnp.int64)
        if dim is None:
            found = function(jnp.ravel(x))
            return jnp.reshape(found, (1,) * x.ndim if keepdim else ()).astype(jnp.int64)
        return function(x, axis=dim, keepdims=keepdim).astype(jnp.int64)

    return lower


def _with_place(argument: Callable[..., Any]) -> Callable[..., Any]:
    def lower(node: fx.Node, x: Any, dim: int, keepdim: bool = False) -> Any:
        if not x.ndim:
            return x, jnp.zeros((), jnp.int64)
        places = argument(x, axis=dim, keepdims=True)
        values = jnp.take_along_axis(x, places, dim)
        if not keepdim:
            values, places = jnp.squeeze(values, dim), jnp.squeeze(places, dim)
        return values, places.astype(jnp.int64)

    return lower


def _sort(node: fx.Node, x: Any, dim: int = -1, descending: bool = False) -> Any:
    if not x.ndim:
        return x, jnp.zeros((), jnp.int64)
    if descending:  # equal ones keep their order, as in PyTorch: sort backwards, and read that backwards
        places = x.shape[dim] - 1 - jnp.flip(jnp.argsort(jnp.flip(x, dim), axis=dim, stable=True), dim)
    else:
        places = jnp.argsort(x, axis=dim, stable=True)
    return jnp.take_along_axis(x, places, dim), places.astype(jnp.int64)


def _topk(node: fx.Node, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    values, places = _sort(node, x, dim, largest)
    if not x.ndim:
        return values, places
    kept = (slice(None),) * (dim % x.ndim) + (slice(0, k),)
    return values[kept], places[kept]


def _cumsum(node: fx.Node, x: Any, dim: int, *, dtype: Any = None) -> Any:
    to = result_dtype(node)
    return jnp.cumsum(_wide(x, to), axis=dim).astype(to) if x.ndim else x.astype(to)


TABLE: dict[Any, Callable[..., Any]] = {
    _aten.sum.dim_IntList: _reduced(jnp.sum),
    _aten.sum.default: _whole(jnp.sum),
    _aten.mean.dim: _reduced(jnp.mean),
    _aten.mean.default: _whole(jnp.mean),
    _aten.prod.dim_int: _reduced(jnp.prod),
    _aten.prod.default: _whole(jnp.prod),
    _aten.amax.default: _extreme(jnp.max),
    _aten.amin.default: _extreme(jnp.min),
    _aten.any.default: _any,
    _aten.any.dim: _any,
    _aten.any.dims: _any,
    _aten.argmax.default: _arg(jnp.argmax),
    _aten.argmin.default: _arg(jnp.argmin),
    _aten.max.dim: _with_place(jnp.argmax),
    _aten.min.dim: _with_place(jnp.argmin),
    _aten.sort.default: _sort,
    _aten.topk.default: _topk,
    _aten.cumsum.default: _cumsum,
}
"""By operator."""
