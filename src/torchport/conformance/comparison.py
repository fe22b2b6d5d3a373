"""Whether a backend's results are those of the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchport.conformance.case import Violation

_PRECISE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_SMALL = 1000
_ABSOLUTE = 1e-5
"""Source: ``same`` in torch/_dynamo/utils.py, by which PyTorch judges its own compiler: an error of at most twice the
CPU's own, three times for small tensors and half precision, and a tenth of 1e-4."""


def precise(x: Any) -> Any:
    """The pytree with tensors and dtypes of less precision made double."""
    return pytree.tree_map(_precise_leaf, x)


def _precise_leaf(x: Any) -> Any:
    if isinstance(x, torch.dtype):
        return _PRECISE.get(x, x)
    if isinstance(x, torch.Tensor) and x.dtype in _PRECISE and x.layout is torch.strided:
        return x.detach().to(_PRECISE[x.dtype])
    return x


def on_host(x: Any) -> Any:
    """The pytree with its tensors on the CPU, outside of the autograd graph."""
    return pytree.tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, x)


def check_form(wanted: Any, got: Any) -> None:
    """Raises :class:`Violation` unless the results are as many, of the same dtypes and sizes."""
    wanted, got = pytree.tree_leaves(wanted), pytree.tree_leaves(got)
    if len(wanted) != len(got):
        raise Violation(f"{len(wanted)} results wanted, {len(got)} found")
    for i, (w, g) in enumerate(zip(wanted, got, strict=True)):
        if not isinstance(w, torch.Tensor):
            if type(w) is not type(g):
                raise Violation(f"result {i}: {type(w).__name__} wanted, {type(g).__name__} found")
        elif not isinstance(g, torch.Tensor):
            raise Violation(f"result {i}: a tensor wanted, {type(g).__name__} found")
        elif (w.dtype, w.shape) != (g.dtype, g.shape):
            raise Violation(
                f"result {i}: {w.dtype} of sizes {tuple(w.shape)} wanted, {g.dtype} of sizes {tuple(g.shape)} found"
            )


def check_values(wanted: Any, got: Any, exact: Any = None, what: str = "") -> None:
    """Raises :class:`Violation` unless the results have the CPU's values, within torch's tolerances for the dtype.

    Args:
        wanted: the CPU's results.
        got: the backend's.
        exact: the results in double precision: where the CPU itself is further from them than the tolerance, the
            backend may be as far.
        what: the first words of the message.
    """
    check_form(wanted, got)
    leaves = zip(*map(pytree.tree_leaves, (wanted, got)), strict=True)
    references = [] if exact is None else pytree.tree_leaves(exact)
    for i, (w, g) in enumerate(leaves):
        try:
            torch.testing.assert_close(g, w, equal_nan=True, check_stride=False)
        except AssertionError as error:
            if len(references) > i and _is_as_near(references[i], w, g):
                continue
            lines = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
            raise Violation(f"{what or f'result {i}'}: {lines}") from None


def _is_as_near(exact: Any, wanted: Any, got: Any) -> bool:
    """Whether the backend is as near to the result in double precision as the CPU is, within the factor."""
    if not isinstance(wanted, torch.Tensor) or wanted.dtype not in _PRECISE or exact.shape != wanted.shape:
        return False
    half = wanted.dtype in (torch.float16, torch.bfloat16)
    factor = 3.0 if half or wanted.numel() < _SMALL else 2.0
    return _error(exact, got) <= factor * _error(exact, wanted) + _ABSOLUTE


def _error(exact: torch.Tensor, x: torch.Tensor) -> float:
    """The root of the mean of the squared differences; infinite and undefined elements must be the same in both."""
    exact, x = exact.resolve_conj().to(torch.complex128), x.resolve_conj().to(torch.complex128)
    same = (exact == x) | (exact.isnan() & x.isnan())
    return float(torch.where(same, 0, exact - x).abs().square().mean().sqrt()) if x.numel() else 0.0
