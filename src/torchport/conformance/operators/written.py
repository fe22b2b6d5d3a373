"""Calls of core ATen operators that no sample of OpInfo comes down to on the CPU, written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten
Written = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]


def written_calls(dtype: torch.dtype) -> list[Written]:
    """Calls with that dtype; some of them the CPU does not run."""
    a = _values((3, 4), dtype)
    b = _values((3, 4), dtype).flip(0)
    image = _values((2, 3, 6, 5), dtype)
    volume = _values((1, 2, 4, 5, 3), dtype)
    return [
        *_elementwise(a, b),
        *_padding_and_pooling(a, image, volume),
        *_normalisation(image),
        *_random(a, dtype),
        *_looking(a),
    ]


def _values(sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers of both signs where there are, of which few are equal."""
    count = torch.Size(sizes).numel()
    return ((torch.arange(count, dtype=torch.float64) * 7 % 11 - 4) * 0.75).reshape(sizes).to(dtype)


def _elementwise(a: torch.Tensor, b: torch.Tensor) -> list[Written]:
    bits = [aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor]
    comparisons = [aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge]
    arithmetic = [aten.add, aten.sub, aten.mul, aten.div, aten.fmod, aten.remainder]
    return [
        *((op.Scalar, (a, 2), {}) for op in (*bits, *comparisons, *arithmetic)),
        *((op.Tensor, (a, b), {}) for op in (*bits, *comparisons, *arithmetic)),
        (aten.bitwise_not.default, (a,), {}),
        (aten.logical_and.default, (a, b), {}),
        (aten.logical_or.default, (a, b), {}),
        (aten.logical_xor.default, (a, b), {}),
        (aten.logical_not.default, (a,), {}),
        (aten.div.Scalar_mode, (a, 2), {"rounding_mode": "floor"}),
        (aten.div.Tensor_mode, (a, b + 3), {"rounding_mode": "trunc"}),
        (aten.pow.Scalar, (2, a), {}),
        (aten.pow.Tensor_Scalar, (a, 2), {}),
        (aten.atan2.out, (a, b), {"out": torch.zeros_like(a)}),
        (aten.copy.default, (a, b), {}),
        (aten.fill.Scalar, (a, 2), {}),
        (aten.isinf.default, (a,), {}),
        (aten.isnan.default, (a,), {}),
        (aten.nonzero.default, (a,), {}),
        (aten.any.default, (a,), {}),
        (aten.any.dim, (a, 1), {}),
        (aten.any.dims, (a, [0, 1]), {"keepdim": True}),
        (aten.argmax.default, (a, 1), {}),
        (aten.argmin.default, (a, 0), {"keepdim": True}),
        (aten.var.dim, (a, [1]), {}),
        (aten.scatter.value, (a, 1, torch.tensor([[0, 2], [1, 3], [2, 0]]), 2), {}),
        (aten.scatter.src, (a, 1, torch.tensor([[0, 2], [1, 3], [2, 0]]), b), {}),
        (aten._local_scalar_dense.default, (a[0, 1],), {}),
    ]


def _padding_and_pooling(a: torch.Tensor, image: torch.Tensor, volume: torch.Tensor) -> list[Written]:
    return [
        (aten.avg_pool1d.default, (a, [2]), {}),
        (aten.adaptive_avg_pool1d.default, (a, [3]), {}),
        (aten.reflection_pad1d.default, (a, [1, 2]), {}),
        (aten.reflection_pad2d.default, (image, [1, 2, 0, 1]), {}),
        (aten.reflection_pad3d.default, (volume, [1, 0, 2, 1, 0, 1]), {}),
        (aten.replication_pad2d.default, (image, [1, 2, 0, 1]), {}),
        (aten.replication_pad3d.default, (volume, [1, 0, 2, 1, 0, 1]), {}),
        (aten.constant_pad_nd.default, (image, [1, 2], 2), {}),
        (aten.upsample_bilinear2d.vec, (image, None, False, [2.0, 1.5]), {}),
        (aten.upsample_nearest2d.vec, (image, [9, 7], None), {}),
        (aten.upsample_nearest2d.vec, (image, None, [2.0, 2.0]), {}),
    ]


def _normalisation(image: torch.Tensor) -> list[Written]:
    if not image.is_floating_point():
        return []
    scale, shift = image[0, :, 0, 0].abs() + 0.5, image[1, :, 1, 1]
    mean, variance = image.mean((0, 2, 3)), image.double().var((0, 2, 3)).to(image.dtype)
    return [
        (aten._native_batch_norm_legit.no_stats, (image, scale, shift, True, 0.1, 1e-5), {}),
        (aten._native_batch_norm_legit_no_training.default, (image, scale, shift, mean, variance, 0.1, 1e-5), {}),
        (aten.native_dropout.default, (image, 0.5, True), {}),
    ]


def _random(a: torch.Tensor, dtype: torch.dtype) -> list[Written]:
    return [
        (aten.rand.default, ([3, 4],), {"dtype": dtype}),
        (aten.randn.default, ([3, 4],), {"dtype": dtype}),
        (aten.randperm.default, (12,), {"dtype": dtype}),
        (aten.empty_strided.default, ([3, 4], [1, 3]), {"dtype": dtype}),
        (aten.resize_.default, (a, [2, 5]), {}),
    ]


def _looking(a: torch.Tensor) -> list[Written]:
    """What only asks for sizes and strides; the frontend answers."""
    return [
        (aten.sym_size.int, (a, 1), {}),
        (aten.sym_stride.int, (a, 0), {}),
        (aten.sym_numel.default, (a,), {}),
        (aten.sym_storage_offset.default, (a,), {}),
        (aten.sym_is_contiguous.default, (a,), {}),
    ]
