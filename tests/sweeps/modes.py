"""The ways in which a sweep calls an operator: forward, in place, into ``out=``, and its derivatives.

A way is called once on the CPU and once on the device, with copies of the same arguments, and returns what is to be
compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad
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
        out_kind: in the mode ``out``, how the ``out=`` tensors come.
    """

    op: Any
    sample: Any
    number: int
    results: Any = None
    out_kind: str = "exact"


class NotUsableError(Exception):
    """The sample cannot be run in this mode, on any device."""


def takes_part(op: Any, mode: str) -> bool:
    """Whether the operator has that mode at all."""
    if mode == "inplace":
        return op.get_inplace() is not None
    if mode == "out":
        return bool(op.supports_out)
    if mode == "jvp":
        return bool(op.supports_forward_ad)
    if mode == "bwdbwd":
        return bool(op.supports_autograd and op.supports_gradgrad)
    return mode == "fwd" or bool(op.supports_autograd)


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


def twice_backward(case: Case, arguments: Arguments, device: str) -> Any:
    """The gradients, and the gradients of those."""
    x, args, kwargs = arguments
    results = case.sample.output_process_fn_grad(case.op(x, *args, **kwargs))
    outputs = [t for t in tensors_of(results) if t.requires_grad]
    leaves = [t for t in tensors_of(arguments) if t.requires_grad]
    if not outputs or not leaves:
        raise NotUsableError("nothing to differentiate")
    # Where the operator is linear, its second derivative is that of the cotangents.
    cotangents = [cotangent(t).to(device).requires_grad_() for t in outputs]
    first = torch.autograd.grad(outputs, leaves, cotangents, create_graph=True, allow_unused=True)
    again = [g for g in first if g is not None and g.requires_grad]
    if not again:
        raise NotUsableError("the gradient is a constant")
    second = torch.autograd.grad(
        again, [*leaves, *cotangents], [cotangent(g).to(device) for g in again], allow_unused=True
    )
    return [None if t is None else t.detach() for t in (*first, *second)]


def forward_mode(case: Case, arguments: Arguments, device: str) -> Any:
    """The results, and their derivative in a fixed direction, by forward-mode differentiation."""
    if not any(t.requires_grad for t in tensors_of(arguments)):
        raise NotUsableError("nothing to differentiate")
    with forward_ad.dual_level():

        def dual(t: Any) -> Any:
            if not isinstance(t, torch.Tensor):
                return t
            plain = t.detach()
            return forward_ad.make_dual(plain, cotangent(plain).to(device)) if t.requires_grad else plain

        x, args, kwargs = pytree.tree_map(dual, arguments)
        results = tensors_of(case.op(x, *args, **kwargs))
        unpacked = [forward_ad.unpack_dual(t) for t in results]
        return [(p.detach(), None if t is None else t.detach()) for p, t in unpacked]


def into_out(case: Case, arguments: Arguments, device: str) -> Any:
    """The ``out=`` tensors after the call."""
    x, args, kwargs = arguments
    expected = tensors_of(case.results)
    if not expected or len(expected) != len(pytree.tree_leaves(case.results)):
        raise NotUsableError("not all results are tensors")
    out = pytree.tree_map(lambda t: _out(t, case.out_kind, device), case.results)
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


DIFFERENTIATES = frozenset({"bwd", "bwdbwd", "jvp"})
"""The modes whose samples must be differentiable."""

MODES: dict[str, Callable[[Case, Arguments, str], Any]] = {
    "fwd": forward,
    "bwd": backward,
    "inplace": in_place,
    "out": into_out,
    "bwdbwd": twice_backward,
    "jvp": forward_mode,
}
