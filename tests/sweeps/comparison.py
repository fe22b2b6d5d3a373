"""Compares what the device gave with what the CPU gave: values, metadata, layout.

Tolerances are the defaults of ``torch.testing.assert_close`` for the dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

LOOSE_TOLERANCE, LOOSE_EPSILONS = 1e-3, 4
"""Within the larger of both a difference is one of rounding rather than of meaning; it never makes a sample pass."""


def on_cpu(x: Any) -> Any:
    """The pytree with its tensors on the CPU and off the autograd graph."""
    return pytree.tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, x)


def loose_tolerance(dtype: torch.dtype) -> float:
    """Within what numbers of the dtype are loosely equal."""
    inexact = dtype.is_floating_point or dtype.is_complex
    return max(LOOSE_TOLERANCE, LOOSE_EPSILONS * torch.finfo(dtype).eps if inexact else 0.0)


def assert_same_values(wanted: Any, got: Any, loosely: bool = False) -> None:
    """Raises AssertionError where a leaf of ``got`` differs from that of ``wanted``."""
    wanted_leaves, got_leaves = pytree.tree_leaves(wanted), pytree.tree_leaves(got)
    assert len(wanted_leaves) == len(got_leaves), f"{len(wanted_leaves)} results wanted, got {len(got_leaves)}"
    for w, g in zip(wanted_leaves, got_leaves, strict=True):
        if isinstance(w, torch.Tensor):
            assert isinstance(g, torch.Tensor), f"a tensor wanted, got {type(g).__name__}"
            tolerance = loose_tolerance(w.dtype) if loosely else None
            torch.testing.assert_close(
                on_cpu(g), on_cpu(w), rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False
            )
        elif isinstance(w, float | complex):
            tolerance = LOOSE_TOLERANCE if loosely else None
            torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance, equal_nan=True)
        elif isinstance(w, int | torch.Size | torch.dtype | str):
            assert w == g, f"{w} wanted, got {g}"


def metadata_difference(wanted: Any, got: Any, device: str) -> str:
    """How structure, type, shape, dtype, layout or device differ; empty if they do not."""
    wanted_leaves, got_leaves = pytree.tree_leaves(wanted), pytree.tree_leaves(got)
    if len(wanted_leaves) != len(got_leaves):
        return f"{len(wanted_leaves)} results wanted, got {len(got_leaves)}"
    for i, (w, g) in enumerate(zip(wanted_leaves, got_leaves, strict=True)):
        if type(w) is not type(g):
            return f"result {i}: {type(w).__name__} wanted, got {type(g).__name__}"
        if not isinstance(w, torch.Tensor):
            continue
        for name in ("shape", "dtype", "layout", "requires_grad"):
            if getattr(w, name) != getattr(g, name):
                return f"result {i}: {name} {_text(getattr(w, name))} wanted, got {_text(getattr(g, name))}"
        if g.device.type != device:
            return f"result {i}: device {device} wanted, got {g.device}"
    return ""


def layout_difference(wanted: Any, got: Any) -> str:
    """How strides, storage offsets, conjugate and negative bits, or shared storages differ; empty if they do not.

    Both pytrees hold the results and then the arguments, so that a copy in the place of a view is seen.
    """
    pairs = [
        (w, g)
        for w, g in zip(pytree.tree_leaves(wanted), pytree.tree_leaves(got), strict=False)
        if _is_strided(w) and _is_strided(g)
    ]
    for i, (w, g) in enumerate(pairs):
        for name in ("stride", "storage_offset", "is_conj", "is_neg"):
            w_fact, g_fact = getattr(w, name)(), getattr(g, name)()
            if w_fact != g_fact:
                return f"tensor {i} of shape {tuple(w.shape)}: {name} {w_fact} wanted, got {g_fact}"
    wanted_owners, got_owners = _owners([w for w, _ in pairs]), _owners([g for _, g in pairs])
    if wanted_owners != got_owners:
        return f"shared storages {wanted_owners} wanted, got {got_owners}"
    return ""


def _is_strided(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout is torch.strided


def _owners(tensors: list[torch.Tensor]) -> list[int]:
    keys = [t.untyped_storage()._cdata for t in tensors]
    return [keys.index(k) for k in keys]


def _text(x: Any) -> str:
    return str(tuple(x)) if isinstance(x, torch.Size) else str(x)
