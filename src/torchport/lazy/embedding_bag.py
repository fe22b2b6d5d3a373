"""The gradient of ``embedding_bag`` with respect to its weight: dense, or sparse where that was asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch

aten = torch.ops.aten


def sparse_where_asked(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``aten::_embedding_bag_backward`` by this kernel; a sparse gradient by PyTorch's composite of dense operators.

    A graph holds dense values only. The steps are those of ``_embedding_bag_backward_symint`` in
    aten/src/ATen/native/EmbeddingBag.cpp.
    """

    def backward(
        grad: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        offset2bag: torch.Tensor,
        bag_size: torch.Tensor,
        maximum_indices: torch.Tensor,
        num_weights: int,
        scale_grad_by_freq: bool,
        mode: int,
        sparse: bool,
        per_sample_weights: torch.Tensor | None,
        padding_idx: int = -1,
    ) -> torch.Tensor:
        rest = (num_weights, scale_grad_by_freq, mode)
        if not sparse:
            bags = (offsets, offset2bag, bag_size, maximum_indices)
            return kernel(grad, indices, *bags, *rest, sparse, per_sample_weights, padding_idx)
        if indices.numel() and not offset2bag.numel():
            begins = offsets.new_zeros(indices.shape[0] + 1).index_add(0, offsets, torch.ones_like(offsets))
            begins[0] -= 1
            offset2bag = begins.cumsum(0)[: indices.shape[0]]
        found: torch.Tensor = aten._embedding_bag_sparse_backward(
            grad, indices, offsets, offset2bag, bag_size, *rest, per_sample_weights, padding_idx
        )
        return found

    return backward
