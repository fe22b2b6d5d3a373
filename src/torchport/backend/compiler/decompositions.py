"""The level of operators that compilers are given, where they do not say otherwise: core ATen."""

from __future__ import annotations

from functools import cache

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import OpOverload

from torchport.backend.compiler.retracing import Decompositions
from torchport.backend.compiler.written import WRITTEN

_aten = torch.ops.aten
_MORE = (
    # Beyond what PyTorch takes for core: converters lack these, or have them wrong.
    _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit_functional.default,
    _aten._native_batch_norm_legit_no_training.default,
    _aten.native_batch_norm_backward.default,
    _aten.native_layer_norm.default,
    _aten.native_layer_norm_backward.default,
    _aten.native_group_norm.default,
    _aten.native_group_norm_backward.default,
    _aten.embedding_dense_backward.default,
    _aten._log_softmax.default,
    _aten._softmax.default,
)


@cache
def core_decompositions(kept: frozenset[OpOverload] = frozenset()) -> Decompositions:
    """PyTorch's table to core ATen, and what converters lack of that; without the operators that a compiler keeps."""
    table = dict(core_aten_decompositions())
    table.update(get_decompositions(list(_MORE)))
    table.update(WRITTEN)
    del table[_aten.squeeze.dim]  # core itself, and what squeeze.dims is written in
    return {op: written for op, written in table.items() if op not in kept}
