"""The ways in which a sweep calls an operator: forward, backward, in place, into ``out=``.

A way is called once on the CPU and once on the device, with copies of the same arguments, and returns what is to be
compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A sample's input, positional and keyword arguments."""

OUT_KINDS = ("exact", "strided", "empty")
"""How an ``out=`` tensor may come: of the right sizes; a slice of something larger; without elements, to be resized."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is called.

    Attributes:
        op: the ``OpInfo``.
        sample: one of its samples, which are made for the CPU.
        number: the how manyth usable one.
        results: in the mode ``out``, what the operator gives on the CPU without ``out=``.
    """

    op: Any
    sample: Any
    number: int
    results: Any = None


class NotUsableError(Exception):
    """The sample cannot be run in this mode, on any device."""


def takes_part(op: Any, mode: str) -> bool:
    """Whether the operator has that mode at all."""
    if mode == "bwd":
        return bool(op.supports_autograd)
    if mode == "inplace":
        return op.get_inplace() is not None
    return mode != "out" or bool(op.supports_out)


def tensors_of(x: Any) -> list[torch.Tensor]:
    """The tensors of a pytree."""
    return [t for t in pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def forward(case: Case, arguments: Arguments, device: str) -> Any:
    """The operator's results."""
    x, args, kwargs = arguments
    return case.op(x, *args, **kwargs)


def in_place(case: Case, arguments: Arguments, device: str) -> Any:
    """What the in-place variant returns; the arguments, which are compared as well, hold what it wrote."""
    if case.sample.broadcasts_input:
        raise NotUsableError("the result is larger than the tensor that it would be written to")
    x, args, kwargs = arguments
    return case.op.get_inplace()(x, *args, **kwargs)


def cotangent(like: torch.Tensor) -> torch.Tensor:
    """A fixed gradient that is the same nowhere, so that a transposed or shifted one shows."""
    values = torch.cos(torch.arange(like.numel(), dtype=torch.float64) * 0.7 + 0.3).reshape(like.shape)
    if like.dtype.is_complex:
        imaginary = values.flip(0) if like.dim() else values
        return (values + 0.5j * imaginary).to(like.dtype)
    return values.to(like.dtype)


def backward(case: Case, arguments: Arguments, device: str) -> Any:
    """The gradients of all arguments that want one."""
    x, args, kwargs = arguments
    results = case.sample.output_process_fn_grad(case.op(x, *args, **kwargs))
    outputs = [t for t in tensors_of(results) if t.requires_grad]
    leaves = [t for t in tensors_of(arguments) if t.requires_grad]
    if not outputs or not leaves:
        raise NotUsableError("nothing to differentiate")
    torch.autograd.backward(outputs, [cotangent(t).to(device) for t in outputs])
    return [t.grad for t in leaves]


def into_out(case: Case, arguments: Arguments, device: str) -> Any:
    """The ``out=`` tensors after the call, of another kind for each sample in turn."""
    x, args, kwargs = arguments
    expected = tensors_of(case.results)
    if not expected or len(expected) != len(pytree.tree_leaves(case.results)):
        raise NotUsableError("not all results are tensors")
    kind = OUT_KINDS[case.number % len(OUT_KINDS)]
    out = pytree.tree_map(lambda t: _out(t, kind, device), case.results)
    returned = case.op(x, *args, **kwargs, out=out)
    for given, back in zip(tensors_of(out), tensors_of(returned), strict=True):
        assert given is back, "the call returns other tensors than those of out="
    return out


def _out(like: torch.Tensor, kind: str, device: str) -> torch.Tensor:
    if kind == "empty":
        return torch.empty(0, dtype=like.dtype, device=device)
    if kind == "strided" and like.dim():
        larger = torch.zeros([*like.shape[:-1], 2 * like.shape[-1]], dtype=like.dtype, device=device)
        return larger[..., ::2]
    return torch.zeros_like(like, device=device)


MODES: dict[str, Callable[[Case, Arguments, str], Any]] = {
    "fwd": forward,
    "bwd": backward,
    "inplace": in_place,
    "out": into_out,
}
