"""Python numbers where an operator wants a tensor, for operators that take none from Python.

PyTorch hands the number of ``torch.fmod(x, 2.0, out=y)`` on as a tensor of no dimensions that it marks as a number, and
gives our kernel the number. Most operators take it so from Python as well; for these it is made a tensor again.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.backend import Shape, Value
from torchport.lazy import active
from torchport.lazy.schema import Kind, Operator
from torchport.lazy.tensor import new_tensor

_NUMBERS = (bool, int, float, complex)


def refuses_numbers(info: Operator) -> bool:
    """Whether the operator may be given a number for a tensor and its binding for Python takes none."""
    name = info.op._schema.name.partition("::")[2]
    if torch._C._should_allow_numbers_as_tensors(name) or info.kinds.count(Kind.TENSOR) < 2:
        return False
    # Numbers come from an overload for them that calls the one for tensors.
    packet = getattr(getattr(torch.ops, info.op.namespace), name)
    return any("scalar" in overload.lower() for overload in packet.overloads())


def as_tensors(info: Operator, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with each number in the place of a tensor made one. Call it with the trace's lock held."""
    if all(isinstance(a, torch.Tensor) for k, a in zip(info.kinds, args, strict=False) if k == Kind.TENSOR):
        return args
    like = next((a for a in args if isinstance(a, torch.Tensor)), None)
    return tuple(
        _tensor(a, like) if k == Kind.TENSOR and type(a) in _NUMBERS else a
        for k, a in zip(info.kinds, args, strict=False)
    )


def _tensor(number: Any, like: torch.Tensor | None) -> torch.Tensor:
    dtype = _dtype(number, like)
    node = active.trace.add_node(active.builder().make_scalar(number, dtype))
    return new_tensor(Shape(dtype, ()), Value(node))


def _dtype(number: Any, like: torch.Tensor | None) -> torch.dtype:
    """A dtype that promotes as the number does, and loses nothing of it that the result would hold."""
    plain = torch.tensor(number).dtype
    if like is None or torch.promote_types(plain, like.dtype).is_complex is not like.dtype.is_complex:
        return plain
    fits = torch.result_type(torch.empty(1, dtype=like.dtype, device="meta"), number) is like.dtype
    # Beside a tensor with dimensions one without never widens the dtype, only its kind.
    return like.dtype if fits and (not like.dim() or like.dtype in (torch.float64, torch.complex128)) else plain
