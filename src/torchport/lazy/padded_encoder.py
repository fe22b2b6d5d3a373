"""``nn.TransformerEncoder`` in evaluation with padded sequences: eager's results, without nested tensors.

There PyTorch cuts the padding off, which makes a nested tensor, whose sizes are data on the host and whose kernels are
registered for the CPU and CUDA alone. The same numbers come of the padded tensor if the padding is masked and is zero
afterwards, as it is in what PyTorch makes of the nested result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from torchport.errors import UnsupportedOperationError


class _NestedTensorWantedError(UnsupportedOperationError):
    """A padded tensor was to become a nested one."""


def nested_tensor_from_mask(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``aten::_nested_tensor_from_mask``: refuses, and :func:`patch_encoder` answers."""
    raise _NestedTensorWantedError(
        "nested tensors of the layout torch.strided have no kernels on this device; "
        "use the layout torch.jagged, or padded tensors with a mask"
    )


def is_left_aligned(padded: torch.Tensor, kept: torch.Tensor) -> bool:
    """``aten::_nested_tensor_from_mask_left_aligned``: whether every row of the mask is true first and false then."""
    positions = torch.arange(kept.shape[1], device=kept.device)
    return bool((kept == (positions < kept.sum(1, keepdim=True))).all())


PADDED_KERNELS: dict[str, Callable[..., Any]] = {
    "_nested_tensor_from_mask": nested_tensor_from_mask,
    "_nested_tensor_from_mask_left_aligned": is_left_aligned,
}


def patch_encoder() -> None:
    """``nn.TransformerEncoder.forward``: goes on with padded tensors where PyTorch would go on with nested ones."""
    original: Callable[..., torch.Tensor] = torch.nn.TransformerEncoder.forward

    def forward(
        self: torch.nn.TransformerEncoder,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> torch.Tensor:
        # It is raised before the first layer, and only where there is no mask but that of padding.
        with suppress(_NestedTensorWantedError):
            return original(self, src, mask, src_key_padding_mask, is_causal)
        padding = src_key_padding_mask
        assert padding is not None
        output = src
        for layer in self.layers:
            output = layer(output, src_key_padding_mask=padding)
        is_padding = padding if padding.dtype is torch.bool else padding != 0
        output = output.masked_fill(is_padding.unsqueeze(-1), 0.0)
        return output if self.norm is None else self.norm(output)

    torch.nn.TransformerEncoder.forward = forward  # type: ignore[method-assign]
