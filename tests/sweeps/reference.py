"""A reference in double precision, for samples that any order of sums and products rounds to another result.

Where the CPU's own result is further from the exact one than the tolerance allows (a nearly singular matrix, half
precision), being within the tolerance of it proves nothing and can fail by chance. There the device passes if it is as
near to the exact result as the CPU is, within a factor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from sweeps.comparison import on_cpu

FACTOR = 2.0
"""Source: ``same`` in torch/_dynamo/utils.py, by which PyTorch judges its own compiler: twice the reference's error."""

_PRECISE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def precise(x: Any) -> Any:
    """The pytree with tensors and dtypes of less precision made double."""
    return pytree.tree_map(_leaf, x)


def _leaf(x: Any) -> Any:
    if isinstance(x, torch.dtype):
        return _PRECISE.get(x, x)
    if isinstance(x, torch.Tensor) and x.dtype in _PRECISE and x.layout is torch.strided:
        return x.detach().to(_PRECISE[x.dtype]).requires_grad_(x.requires_grad)
    return x


def as_near(exact: Any, wanted: Any, got: Any) -> str:
    """How near both are to the exact results, where ``got`` is as near as ``wanted``; else nothing."""
    leaves = [pytree.tree_leaves(on_cpu(x)) for x in (exact, wanted, got)]
    if len({len(x) for x in leaves}) != 1:
        return ""
    worst_wanted = worst_got = 0.0
    for e, w, g in zip(*leaves, strict=True):
        if not isinstance(w, torch.Tensor):
            continue
        if w.layout is not torch.strided or w.shape != g.shape or e.shape != w.shape:
            return ""
        if w.dtype not in _PRECISE:
            if not torch.equal(w, g):
                return ""
            continue
        error_wanted, error_got = _error(e, w), _error(e, g)
        if not error_got <= FACTOR * error_wanted:
            return ""
        worst_wanted, worst_got = max(worst_wanted, error_wanted), max(worst_got, error_got)
    return f"{worst_got:.2g} from the result in double precision, the CPU {worst_wanted:.2g}"


def _error(exact: torch.Tensor, x: torch.Tensor) -> float:
    """The root of the mean of the squared differences; infinite and undefined elements must be the same in both."""
    exact, x = exact.resolve_conj().to(torch.complex128), x.resolve_conj().to(torch.complex128)
    same = (exact == x) | (exact.isnan() & x.isnan())
    difference = torch.where(same, 0, exact - x).abs()
    return float(difference.square().mean().sqrt()) if x.numel() else 0.0
