"""Inputs that a method writes to: whether they can be written to as in eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchport.errors import InvalidArgumentError


def check_writable(method: str, leaves: Sequence[Any], written: Sequence[int]) -> None:
    """Accepts inputs that can be written to.

    Args:
        method: its name, for messages.
        leaves: the flat inputs.
        written: which of them the method writes to.

    Raises:
        InvalidArgumentError: eager would refuse one: it is expanded, a tensor of inference mode outside of it, or a
            leaf that gradients are wanted of.
    """
    for i in written:
        why = _obstacle(leaves[i])
        if why:
            raise InvalidArgumentError(f"{method} writes to input {i}, {why}. Pass a clone of it.")


def _obstacle(tensor: torch.Tensor) -> str:
    if any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
        return "of which several elements are one place in memory"
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "which was made in inference mode, and is not to be changed outside of it"
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        return "a leaf that requires grad, which is changed under torch.no_grad() only"
    return ""
