"""What a model under test is: how to make it, what to feed it, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lazy.cases.oracle import data, digits

VOCABULARY = 61
PAD, BOS, EOS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Subject:
    """A small model with random weights, and a batch for it.

    Attributes:
        name: as the table calls it.
        make: makes the model on the host; the argument names the attention, one of ``attention``.
        inputs: the batch, host tensors; with it the model returns a loss.
        attention: the implementations of attention that it has; one without a choice is "eager".
        checkpoints: whether it can recompute activations instead of keeping them.
        generates: how it generates: the arguments of ``generate()``, by a name for each way.
        prompt: what ``generate()`` begins from.
        draws_on_default_device: the forward pass calls ``torch.rand([])``, on the default device: the host, where the
            numbers come from the generator that dropout draws from if that is the host's too. So the default device is
            the model's, and the two streams are one on every device.
        low_precision: why the CPU cannot run it in float16 or bfloat16: its error; empty where it can.
        own_kernels: the CPU has kernels of its own for it, which round elsewhere: in low precision, and after steps of
            an optimizer that divides by the size of the gradient, only the accuracy can be compared.
    """

    name: str
    make: Callable[[str], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    attention: tuple[str, ...] = ("eager", "sdpa")
    checkpoints: bool = True
    generates: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    prompt: Callable[[], dict[str, Any]] | None = None
    draws_on_default_device: bool = False
    low_precision: str = ""
    own_kernels: bool = False

    def __str__(self) -> str:
        return self.name


def tokens(*sizes: int, seed: int = 1) -> torch.Tensor:
    """Random token ids, none of them special."""
    return digits("cpu", VOCABULARY - 3, *sizes, seed=seed) + 3


def noise(*sizes: int, seed: int = 2) -> torch.Tensor:
    """Normal numbers: pictures, spectra."""
    return data("cpu", *sizes, seed=seed)


def attention_mask(rows: int, length: int) -> torch.Tensor:
    """Ones, but for padding at the end of the last row."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[-1, -2:] = 0
    return mask


def left_padded(rows: int, length: int) -> dict[str, torch.Tensor]:
    """A prompt as decoders want it: the last row begins with padding."""
    ids = tokens(rows, length)
    mask = torch.ones(rows, length, dtype=torch.long)
    ids[-1, :2], mask[-1, :2] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask}
