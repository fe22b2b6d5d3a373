"""Operators in forms that IREE's compiler takes, where it crashes on their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_aten = torch.ops.aten


def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``aten.scatter_add`` as an ``index_put`` that adds up, with an index for each dimension."""
    if not self.dim():
        return NotImplemented  # type: ignore[no-any-return]
    dim %= self.dim()
    places = []
    for d in range(self.dim()):
        if d == dim:
            places.append(index)
        else:
            sizes = [-1 if i == d else 1 for i in range(self.dim())]
            places.append(torch.arange(index.shape[d]).view(sizes).expand(index.shape))
    for d, size in enumerate(index.shape):
        src = src.narrow(d, 0, size)
    added: Tensor = _aten.index_put.default(self, places, src, True)
    return added


WRITTEN: dict[OpOverload, Callable[..., Any]] = {_aten.scatter_add.default: scatter_add}
"""By operator."""
