"""Operators that accelerators have for dtypes for which the CPU's kernel is missing.

Libraries know the CPU's gaps and go around them where ``device.type == "cpu"``; on any other device they call what
every accelerator can do. Here such a call is traced in a dtype that the CPU has, and its result is converted back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchport.lazy.kernels import make_kernel

aten = torch.ops.aten


def _widened(op: Any) -> Callable[..., Any]:
    """The kernel of an operator that takes integers as the float64 numbers that they are."""
    original: Callable[..., Any] | None = None

    def kernel(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal original
        if not (self.is_floating_point() or self.is_complex() or self.dtype is torch.bool):
            return op(self.to(torch.float64), *args, **kwargs).to(self.dtype)
        if original is None:
            original = make_kernel(op)
        return original(self, *args, **kwargs)

    return kernel


# Mixtures of experts count with it how many tokens each expert gets (transformers, integrations/moe.py).
WIDENED_KERNELS = {"histc": _widened(aten.histc.default)}
