"""Operators that arrange elements, make tensors, and pick elements out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchport_runtime.interpreter.dtypes import Array, numpy_dtype, promoted
from torchport_runtime.plain import DType

Function = Callable[..., Any]


def _reshape(x: Array, sizes: Sequence[int], strides: Sequence[int] = ()) -> Any:
    return x.reshape(tuple(sizes))


def _expand(x: Array, sizes: Sequence[int], implicit: bool = False) -> Any:
    lead = len(sizes) - x.ndim
    wanted = [x.shape[i - lead] if n == -1 else n for i, n in enumerate(sizes)]
    return np.broadcast_to(x, wanted)


def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    picked = [slice(None)] * x.ndim
    picked[dim] = slice(start, end, step)
    return x[tuple(picked)]


def _select(x: Array, dim: int, index: int) -> Any:
    return x[(slice(None),) * (dim % x.ndim) + (index,)]


def _squeeze(x: Array, dims: int | Sequence[int] | None = None) -> Any:
    if dims is None:
        return np.squeeze(x)
    wanted = [d % max(x.ndim, 1) for d in (dims if isinstance(dims, Sequence) else [dims])]
    return np.squeeze(x, tuple(d for d in wanted if x.ndim and x.shape[d] == 1))


def _cat(tensors: Sequence[Array], dim: int = 0) -> Any:
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors)
    dtype = promoted(tensors)
    return np.concatenate([t.astype(dtype, copy=False) for t in kept], dim)


def _stack(tensors: Sequence[Array], dim: int = 0) -> Any:
    dtype = promoted(tensors)
    return np.stack([t.astype(dtype, copy=False) for t in tensors], dim)


def _split(x: Array, size: int, dim: int = 0) -> list[Any]:
    return np.split(x, range(size, x.shape[dim], size), dim)


def _split_with_sizes(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Any]:
    return np.split(x, np.cumsum(sizes)[:-1].tolist(), dim)


def _unbind(x: Array, dim: int = 0) -> list[Any]:
    return [_select(x, dim, i) for i in range(x.shape[dim])]


def _pad(x: Array, pads: Sequence[int], value: Any = 0) -> Any:
    around = [(0, 0)] * x.ndim
    cuts = [slice(None)] * x.ndim
    for i in range(len(pads) // 2):
        before, after = pads[2 * i], pads[2 * i + 1]
        dim = x.ndim - 1 - i
        around[dim] = (max(before, 0), max(after, 0))
        cuts[dim] = slice(max(-before, 0), x.shape[dim] - max(-after, 0))
    return np.pad(x[tuple(cuts)], around, constant_values=np.asarray(value, x.dtype))


def _full(sizes: Sequence[int], value: Any, dtype: DType | None = None, **ignored: Any) -> Any:
    return np.full(tuple(sizes), value, numpy_dtype(dtype.name) if dtype else None)


def _filled(value: Any) -> Function:
    def make(sizes: Sequence[int], dtype: DType | None = None, **ignored: Any) -> Any:
        return np.full(tuple(sizes), value, numpy_dtype(dtype.name) if dtype else np.float32)

    return make


def _full_like(x: Array, value: Any, dtype: DType | None = None, **ignored: Any) -> Any:
    return np.full(x.shape, value, numpy_dtype(dtype.name) if dtype else x.dtype)


def _filled_like(value: Any) -> Function:
    return lambda x, dtype=None, **ignored: _full_like(x, value, dtype)


def _new_filled(value: Any) -> Function:
    def make(x: Array, sizes: Sequence[int], dtype: DType | None = None, **ignored: Any) -> Any:
        return np.full(tuple(sizes), value, numpy_dtype(dtype.name) if dtype else x.dtype)

    return make


def _arange(*bounds: Any, dtype: DType | None = None, **ignored: Any) -> Any:
    found = numpy_dtype(dtype.name) if dtype else None
    if found is None:
        found = np.dtype(np.float32 if any(isinstance(b, float) for b in bounds) else np.int64)
    return np.arange(*bounds).astype(found)


def _to_copy(x: Array, dtype: DType | None = None, **ignored: Any) -> Any:
    if dtype is None:
        return x
    wanted = numpy_dtype(dtype.name)
    with np.errstate(invalid="ignore"):
        return x.real.astype(wanted) if x.dtype.kind == "c" and wanted.kind != "c" else x.astype(wanted)


def _index(x: Array, indices: Sequence[Array | None]) -> Any:
    return x[tuple(slice(None) if i is None else i for i in indices)]


def _index_put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Any:
    made = x.copy()
    where: Any = tuple(slice(None) if i is None else i for i in indices)
    if accumulate:
        np.add.at(made, where, values)
    else:
        made[where] = values
    return made


def _gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Any:
    return np.take_along_axis(_cut_to(x, index, dim), index, dim)


def _cut_to(x: Array, index: Array, dim: int) -> Array:
    """Only as much of the other dimensions as there are indices for."""
    return x[tuple(slice(None) if d == dim % x.ndim else slice(n) for d, n in enumerate(index.shape))]


def _scatter(x: Array, dim: int, index: Array, source: Any) -> Any:
    made = x.copy()
    view = _cut_to(made, index, dim)
    values = source[tuple(slice(n) for n in index.shape)] if isinstance(source, np.ndarray) else source
    np.put_along_axis(view, index, np.asarray(values, x.dtype), dim)
    return made


def _scatter_add(x: Array, dim: int, index: Array, source: Array) -> Any:
    made = x.copy()
    where: list[Any] = list(np.indices(index.shape, sparse=True))
    where[dim % x.ndim] = index
    np.add.at(made, tuple(where), source[tuple(slice(n) for n in index.shape)])
    return made


def _embedding(weight: Array, indices: Array, *ignored: Any, **more: Any) -> Any:
    return weight[indices]


def _index_select(x: Array, dim: int, index: Array) -> Any:
    return np.take(x, index.reshape(-1), dim) if x.ndim else x


def _roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    return np.roll(x, tuple(shifts), tuple(dims)) if dims else np.roll(x, shifts[0])


def _tril(x: Array, diagonal: int = 0) -> Any:
    return np.tril(x, diagonal)


def _triu(x: Array, diagonal: int = 0) -> Any:
    return np.triu(x, diagonal)


def _repeat(x: Array, repeats: Sequence[int]) -> Any:
    return np.tile(x, tuple(repeats))


def _slice_scatter(
    x: Array, source: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    made = x.copy()
    _slice(made, dim, start, end, step)[...] = source
    return made


def _select_scatter(x: Array, source: Array, dim: int, index: int) -> Any:
    made = x.copy()
    made[(slice(None),) * (dim % x.ndim) + (index,)] = source
    return made


def _scalar_tensor(value: Any, dtype: DType | None = None, **ignored: Any) -> Any:
    return np.asarray(value, numpy_dtype(dtype.name) if dtype else np.float32)


SHAPES: dict[str, Function] = {
    **{f"aten.{n}.default": _reshape for n in ("view", "view_copy", "_unsafe_view", "_reshape_alias")},
    **{f"aten.{n}.default": lambda x, **k: x for n in ("alias", "detach", "clone", "lift_fresh", "lift")},
    **{f"aten.{n}.default": lambda x, **k: x for n in ("alias_copy", "detach_copy", "lift_fresh_copy")},
    **{f"aten.{n}.default": lambda x, dims: np.transpose(x, dims) for n in ("permute", "permute_copy")},
    **{f"aten.{n}.default": _expand for n in ("expand", "expand_copy")},
    **{f"aten.{n}.default": lambda x, dim: np.expand_dims(x, dim) for n in ("unsqueeze", "unsqueeze_copy")},
    **{f"aten.{n}.{v}": _squeeze for n in ("squeeze", "squeeze_copy") for v in ("default", "dim", "dims")},
    **{f"aten.{n}.Tensor": _slice for n in ("slice", "slice_copy")},
    **{f"aten.{n}.int": _select for n in ("select", "select_copy")},
    **{f"aten.{n}.int": lambda x, a, b: np.swapaxes(x, a, b) for n in ("transpose", "transpose_copy")},
    **{f"aten.{n}.default": lambda x: x.T for n in ("t", "t_copy")},
    **{f"aten.{n}.Tensor": _split for n in ("split", "split_copy")},
    **{f"aten.{n}.default": _split_with_sizes for n in ("split_with_sizes", "split_with_sizes_copy")},
    "aten.unbind.int": _unbind,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.constant_pad_nd.default": _pad,
    "aten.flip.default": lambda x, dims: np.flip(x, tuple(dims)),
    "aten.roll.default": _roll,
    "aten.repeat.default": _repeat,
    "aten.tril.default": _tril,
    "aten.triu.default": _triu,
    "aten.full.default": _full,
    "aten.zeros.default": _filled(0),
    "aten.ones.default": _filled(1),
    "aten.empty.memory_format": _filled(0),
    "aten.full_like.default": _full_like,
    "aten.zeros_like.default": _filled_like(0),
    "aten.ones_like.default": _filled_like(1),
    "aten.empty_like.default": _filled_like(0),
    "aten.new_zeros.default": _new_filled(0),
    "aten.new_ones.default": _new_filled(1),
    **{f"aten.arange.{v}": _arange for v in ("default", "start", "start_step")},
    "aten._to_copy.default": _to_copy,
    "aten.copy.default": lambda x, source, non_blocking=False: np.broadcast_to(source, x.shape).astype(x.dtype),
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index_put,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter,
    "aten.scatter_add.default": _scatter_add,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.embedding.default": _embedding,
    "aten.scalar_tensor.default": _scalar_tensor,
    "port.scalar": _scalar_tensor,
    "port.tensor_list": list,
}
"""Operator → its function of arrays and numbers."""
