"""Decompositions of core operators that PyTorch has none of, and most converters lack: what training needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_aten = torch.ops.aten


def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``aten.convolution_backward`` in convolutions: the gradient of the input is a transposed one.

    Source: Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", section 4.
    """
    if transposed:
        return NotImplemented  # type: ignore[no-any-return]
    kernel = weight.shape[2:]
    dims = len(kernel)
    stride, padding, dilation = (tuple(x) * (dims if len(x) == 1 else 1) for x in (stride, padding, dilation))
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        left = [
            input.shape[2 + i]
            - ((grad_output.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1)
            for i in range(dims)
        ]
        grad_input = _aten.convolution.default(grad_output, weight, None, stride, padding, dilation, True, left, groups)
    if output_mask[1]:
        of_groups = [
            _grad_of_weight(g, x, kernel, stride, padding, dilation)
            for g, x in zip(grad_output.chunk(groups, 1), input.chunk(groups, 1), strict=True)
        ]
        grad_weight = of_groups[0] if groups == 1 else torch.cat(of_groups)
    if output_mask[2]:
        grad_bias = grad_output.sum([0, *range(2, 2 + dims)])
    return grad_input, grad_weight, grad_bias


def _grad_of_weight(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Of one group: the input is convolved with the gradient; stride and dilation change places."""
    zeros = [0] * len(kernel)
    found: Tensor = _aten.convolution.default(
        x.transpose(0, 1), grad.transpose(0, 1), None, dilation, padding, stride, False, zeros, 1
    ).transpose(0, 1)
    for i, size in enumerate(kernel):
        found = found.narrow(2 + i, 0, size)  # positions at which a stride left something over
    return found


def max_pool2d_with_indices_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """``aten.max_pool2d_with_indices_backward``: gradients are added up where the maxima were."""
    zeros = torch.zeros_like(self).flatten(-2)
    added: Tensor = zeros.scatter_add(-1, indices.flatten(-2), grad_output.flatten(-2))
    return added.view(self.shape)


def squeeze_dims(self: Tensor, dim: Sequence[int]) -> Tensor:
    """``aten.squeeze.dims``, a dimension at a time."""
    for d in sorted((d % self.dim() if self.dim() else 0 for d in dim), reverse=True):
        self = _aten.squeeze.dim(self, d)
    return self


def var_correction(
    self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """``aten.var.correction``: the mean square distance from the mean, over n - correction."""
    return var_mean_correction(self, dim, correction=correction, keepdim=keepdim)[0]


def var_mean_correction(
    self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """``aten.var_mean.correction``."""
    if self.is_complex():
        return NotImplemented  # type: ignore[no-any-return]
    dims = [d % self.dim() for d in dim] if dim else list(range(self.dim()))
    count = 1
    for d in dims:
        count *= self.shape[d]
    # Half precision is summed in float32, as PyTorch's kernels do.
    x = self.to(torch.float32) if self.dtype in (torch.float16, torch.bfloat16) else self
    mean = _aten.mean.dim(x, dims, True)
    difference = x - mean
    squares = _aten.sum.dim_IntList(difference * difference, dims, keepdim)
    left = max(count - (1 if correction is None else correction), 0)
    variance = squares / left if left else squares / torch.zeros_like(squares)
    if not keepdim:
        mean = squeeze_dims(mean, dims) if dims else mean
    found: tuple[Tensor, Tensor] = (variance.to(self.dtype), mean.to(self.dtype))
    return found


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """``aten._scaled_dot_product_flash_attention_for_cpu``: the attention, and the logarithm of its denominators.

    Tensors are ``(batch, heads, length, width)``. Source: Dao et al., "FlashAttention", algorithm 1, in one block.
    """
    scores = _scores(query, key, is_causal, attn_mask, scale)
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - largest).exp()
    total = weights.sum(-1, keepdim=True)
    result = (weights / total).to(query.dtype) @ value
    return result, (largest + total.log()).squeeze(-1)


def flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``aten._scaled_dot_product_flash_attention_for_cpu_backward``.

    Source: Dao et al., "FlashAttention", algorithm 4, in one block.
    """
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    weights = (_scores(query, key, is_causal, attn_mask, scale) - logsumexp.unsqueeze(-1)).exp()
    grad, kept = grad_out.to(weights.dtype), out.to(weights.dtype)
    grad_value = weights.transpose(-2, -1) @ grad
    grad_weights = grad @ value.to(weights.dtype).transpose(-2, -1)
    grad_scores = weights * (grad_weights - (grad * kept).sum(-1, keepdim=True)) * factor
    grad_query = grad_scores @ key.to(weights.dtype)
    grad_key = grad_scores.transpose(-2, -1) @ query.to(weights.dtype)
    return grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype)


def _scores(q: Tensor, k: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    """In float32 for half precision, as the kernel has them."""
    dtype = torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else q.dtype
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores: Tensor = (q.to(dtype) @ k.to(dtype).transpose(-2, -1)) * factor
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask.to(dtype)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scores


def copy_strided(a: Tensor, stride: Sequence[int]) -> Tensor:
    """``prims.copy_strided``, into the usual layout: to a compiler only the values matter."""
    copy: Tensor = _aten.clone.default(a, memory_format=torch.contiguous_format)
    return copy


WRITTEN: dict[OpOverload, Callable[..., Any]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: flash_attention_backward,
    torch.ops.prims.copy_strided.default: copy_strided,
    _aten.squeeze.dims: squeeze_dims,
    _aten.var.correction: var_correction,
    _aten.var_mean.correction: var_mean_correction,
    _aten.convolution_backward.default: convolution_backward,
    _aten.max_pool2d_with_indices_backward.default: max_pool2d_with_indices_backward,
}
"""By operator."""
