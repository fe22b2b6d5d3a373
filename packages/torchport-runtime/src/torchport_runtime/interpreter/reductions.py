"""Operators that reduce, scan and sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchport_runtime.interpreter.dtypes import Array, as_float, numpy_dtype
from torchport_runtime.plain import DType

Function = Callable[..., Any]


def _axes(x: Array, dims: Any) -> tuple[int, ...]:
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return tuple(range(x.ndim))
    found = dims if isinstance(dims, Sequence) else [dims]
    return tuple(d % max(x.ndim, 1) for d in found) if x.ndim else ()


def _wide(x: Array) -> Array:
    """Half precision is summed in single, as PyTorch does."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _sum(x: Array, dims: Any = None, keepdim: bool = False, dtype: DType | None = None) -> Any:
    result = numpy_dtype(dtype.name) if dtype else np.dtype(np.int64) if x.dtype.kind in "biu" else x.dtype
    return np.sum(_wide(x), _axes(x, dims), keepdims=keepdim).astype(result)


def _mean(x: Array, dims: Any = None, keepdim: bool = False, dtype: DType | None = None) -> Any:
    result = numpy_dtype(dtype.name) if dtype else x.dtype
    axes = _axes(x, dims)
    count = int(np.prod([x.shape[a] for a in axes]))
    return (np.sum(_wide(x), axes, keepdims=keepdim) / (count or np.nan)).astype(result)


def _prod(x: Array, dims: Any = None, keepdim: bool = False, dtype: DType | None = None) -> Any:
    result = numpy_dtype(dtype.name) if dtype else np.dtype(np.int64) if x.dtype.kind in "biu" else x.dtype
    return np.prod(x, _axes(x, dims), keepdims=keepdim).astype(result)


def _variance(x: Array, dims: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
    axes = _axes(x, dims)
    wide = _wide(x)
    count = int(np.prod([x.shape[a] for a in axes]))
    if not count:
        return np.sum(x, axes, keepdims=keepdim).real * np.nan
    centred = np.abs(wide - np.mean(wide, axes, keepdims=True)) ** 2
    freedom = np.asarray(max(count - (1 if correction is None else correction), 0), centred.dtype)
    found: Any = np.sum(centred, axes, keepdims=keepdim) / freedom
    return found.astype(x.real.dtype)


def _var_mean(x: Array, dims: Any = None, correction: Any = 1, keepdim: bool = False) -> list[Any]:
    return [_variance(x, dims, correction, keepdim), _mean(x, dims, keepdim)]


def _extreme(function: Function) -> Function:
    return lambda x, dims=None, keepdim=False: function(x, axis=_axes(x, dims), keepdims=keepdim)


def _extreme_of_dim(function: Function, where: Function) -> Function:
    def run(x: Array, dim: int, keepdim: bool = False) -> list[Any]:
        if not x.ndim:
            return [x, np.zeros((), np.int64)]
        at = where(x, axis=dim, keepdims=True)
        values = np.take_along_axis(x, at, dim)
        return [values, at] if keepdim else [values.squeeze(dim), at.squeeze(dim)]

    return run


def _arg(function: Function) -> Function:
    def run(x: Array, dim: int | None = None, keepdim: bool = False) -> Any:
        return np.asarray(function(x, axis=dim, keepdims=keepdim), np.int64)

    return run


def _any(x: Array, dims: Any = None, keepdim: bool = False) -> Any:
    return np.any(x, _axes(x, dims), keepdims=keepdim)


def _all(x: Array, dims: Any = None, keepdim: bool = False) -> Any:
    return np.all(x, _axes(x, dims), keepdims=keepdim)


def _cumsum(x: Array, dim: int, dtype: DType | None = None) -> Any:
    result = numpy_dtype(dtype.name) if dtype else np.dtype(np.int64) if x.dtype.kind in "biu" else x.dtype
    return np.cumsum(_wide(x), dim).astype(result) if x.ndim else x.astype(result)


def _sort(x: Array, dim: int = -1, descending: bool = False) -> list[Any]:
    at = _order(x, dim, descending)
    return [np.take_along_axis(x, at, dim) if x.ndim else x, at]


def _sort_stable(x: Array, stable: bool | None = None, dim: int = -1, descending: bool = False) -> list[Any]:
    return _sort(x, dim, descending)


def _order(x: Array, dim: int, descending: bool) -> Any:
    if not x.ndim:
        return np.zeros((), np.int64)
    if not descending:
        return np.argsort(x, dim, kind="stable")
    # Stable the other way round: equal elements keep their order, which reversing an ascending order would not.
    backwards = np.argsort(np.flip(x, dim), dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(backwards, dim)


def _topk(x: Array, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> list[Any]:
    at = _order(x, dim, largest)
    if not x.ndim:
        return [x, at]
    at = at[(slice(None),) * (dim % x.ndim) + (slice(k),)]
    return [np.take_along_axis(x, at, dim), at]


def _softmax(x: Array, dim: int, half_to_float: bool = False) -> Any:
    wide = _wide(as_float(x))
    e = np.exp(wide - np.max(wide, dim, keepdims=True, initial=-np.inf)) if x.size else wide
    return (e / np.sum(e, dim, keepdims=True)).astype(np.float32 if half_to_float else x.dtype)


def _log_softmax(x: Array, dim: int, half_to_float: bool = False) -> Any:
    wide = _wide(as_float(x))
    if not x.size:
        return x
    shifted = wide - np.max(wide, dim, keepdims=True)
    found = shifted - np.log(np.sum(np.exp(shifted), dim, keepdims=True))
    return found.astype(np.float32 if half_to_float else x.dtype)


def _logsumexp(x: Array, dims: Any, keepdim: bool = False) -> Any:
    axes = _axes(x, dims)
    x = as_float(x)
    top = np.max(x.real, axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0).astype(top.dtype)
    found = np.log(np.sum(np.exp(x - top), axes, keepdims=True)) + top
    return found if keepdim else np.squeeze(found, axes)


def _vector_norm(x: Array, order: Any = 2, dims: Any = None, keepdim: bool = False, dtype: DType | None = None) -> Any:
    x = x if dtype is None else x.astype(numpy_dtype(dtype.name))
    size = _wide(np.abs(x))
    axes = _axes(x, dims)
    if order == 0:
        found = np.count_nonzero(size, axes, keepdims=keepdim)
    elif order == np.inf:
        found = np.max(size, axes, keepdims=keepdim, initial=0)
    elif order == -np.inf:
        found = np.min(size, axes, keepdims=keepdim)
    elif order == 2:
        found = np.sqrt(np.sum(size * size, axes, keepdims=keepdim))
    else:
        found = np.sum(size**order, axes, keepdims=keepdim) ** size.dtype.type(1 / order)
    return np.asarray(found).astype(x.real.dtype)


REDUCTIONS: dict[str, Function] = {
    **{f"aten.sum.{v}": _sum for v in ("default", "dim_IntList")},
    **{f"aten.mean.{v}": _mean for v in ("default", "dim")},
    "aten.prod.default": lambda x, dtype=None: _prod(x, None, False, dtype),
    "aten.prod.dim_int": _prod,
    "aten.var.correction": _variance,
    "aten.std.correction": lambda *a, **k: np.sqrt(_variance(*a, **k)),
    "aten.var_mean.correction": _var_mean,
    "aten.amax.default": _extreme(np.max),
    "aten.amin.default": _extreme(np.min),
    "aten.max.default": np.max,
    "aten.min.default": np.min,
    "aten.max.dim": _extreme_of_dim(np.max, np.argmax),
    "aten.min.dim": _extreme_of_dim(np.min, np.argmin),
    "aten.argmax.default": _arg(np.argmax),
    "aten.argmin.default": _arg(np.argmin),
    **{f"aten.any.{v}": _any for v in ("default", "dim", "dims")},
    **{f"aten.all.{v}": _all for v in ("default", "dim", "dims")},
    "aten.cumsum.default": _cumsum,
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort_stable,
    "aten.topk.default": _topk,
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _log_softmax,
    "aten.logsumexp.default": _logsumexp,
    "aten.linalg_vector_norm.default": _vector_norm,
}
"""Operator → its function of arrays and numbers."""
