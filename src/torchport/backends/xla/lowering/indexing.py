"""Reading and writing at indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch
from torch import fx

_aten = torch.ops.aten


def _places(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i for i in indices)


def _index(node: fx.Node, x: Any, indices: Sequence[Any]) -> Any:
    return x[_places(indices)]


def _index_put(node: fx.Node, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    place = x.at[_places(indices)]
    values = values.astype(x.dtype)
    return place.add(values) if accumulate else place.set(values)


def _index_select(node: fx.Node, x: Any, dim: int, index: Any) -> Any:
    return jnp.take(x, jnp.atleast_1d(index), axis=dim) if x.ndim else x


def _gather(node: fx.Node, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    if not x.ndim or not index.ndim:
        return jnp.broadcast_to(x, index.shape)
    return x[_along(x, dim, index)]


def _along(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """An index for each dimension: that along ``dim``, and for the others their own numbers."""
    dim %= x.ndim
    grid = jnp.indices(index.shape, sparse=True)
    return tuple(index if d == dim else grid[d] for d in range(x.ndim))


def _scatter(node: fx.Node, x: Any, dim: int, index: Any, src: Any) -> Any:
    if not x.ndim:
        return jnp.asarray(src, x.dtype).reshape(x.shape) if jnp.ndim(src) == 0 else jnp.ravel(src)[0].astype(x.dtype)
    return x.at[_along(x, dim, index)].set(_window(src, index, x.dtype))


def _scatter_add(node: fx.Node, x: Any, dim: int, index: Any, src: Any) -> Any:
    if not x.ndim:
        return x + jnp.sum(src).astype(x.dtype)
    return x.at[_along(x, dim, index)].add(_window(src, index, x.dtype))


def _window(src: Any, index: Any, dtype: Any) -> Any:
    """The part of the source that the index is for; a number is for all."""
    if not jnp.ndim(src):
        return jnp.asarray(src, dtype)
    return src[tuple(slice(0, n) for n in index.shape)].astype(dtype)


def _embedding(node: fx.Node, weight: Any, indices: Any, *rest: Any) -> Any:
    return weight[indices]


TABLE: dict[Any, Callable[..., Any]] = {
    _aten.index.Tensor: _index,
    _aten.index_put.default: _index_put,
    _aten.index_select.default: _index_select,
    _aten.gather.default: _gather,
    _aten.scatter.src: _scatter,
    _aten.scatter.value: _scatter,
    _aten.scatter_add.default: _scatter_add,
    _aten.embedding.default: _embedding,
}
"""By operator."""
