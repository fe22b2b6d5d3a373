"""Python numbers that are inputs of a compiled program: a rate that changes must cost no compile.

A compiler takes tensors. So a number that an operator can have as a tensor becomes an element of a vector of numbers,
one of the inputs; every other number is a constant of the program, which is compiled again for another value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.backend.compiler.foreach import single_operator
from torchport.ir.call import SCALAR, Call, Number

_aten = torch.ops.aten
_CONSTANT_AT_FIRST = frozenset({"aten::pow", "aten::clamp", "aten::clamp_min", "aten::clamp_max"})
"""What a compiler does better with a constant, and what seldom changes."""
_FACTORS: dict[str, Callable[..., torch.Tensor]] = {
    "aten::add.Tensor": lambda call, x, y, alpha: call(_aten.add.Tensor, x, call(_aten.mul.Tensor, y, alpha)),
    "aten::sub.Tensor": lambda call, x, y, alpha: call(_aten.sub.Tensor, x, call(_aten.mul.Tensor, y, alpha)),
    "aten::addcmul": lambda call, x, y, z, value: call(
        _aten.add.Tensor, x, call(_aten.mul.Tensor, call(_aten.mul.Tensor, y, value), z)
    ),
    "aten::addcdiv": lambda call, x, y, z, value: call(
        _aten.add.Tensor, x, call(_aten.mul.Tensor, call(_aten.div.Tensor, y, z), value)
    ),
}
"""Operators with a factor among their arguments (``alpha``, ``value``), written out. In the order of
aten/src/ATen/native/cpu/PointwiseOpsKernel.cpp: self + value * t1 * t2, self + value * (t1 / t2)."""
_FACTOR_NAMES = ("alpha", "value")


@dataclass(frozen=True, slots=True)
class NumberInput:
    """A number as a program sees it: a tensor of no dimensions, float64, int64 or bool."""

    tensor: torch.Tensor
    type: type


def is_input(call: Call, index: int, value: Any) -> bool:
    """Whether a number of a call is an input of the program from the start, rather than a constant."""
    if call.op is SCALAR:
        return True
    if not can_be_input(call, index) or isinstance(value, complex):
        return False
    op = call.op
    if op in (_aten.full.default, _aten.fill.Scalar):
        return value not in (0, 1)
    return not isinstance(op, OpOverload) or op._schema.name.replace("_foreach_", "") not in _CONSTANT_AT_FIRST


def can_be_input(call: Call, index: int) -> bool:
    """Whether a number of a call may be an input: whether the operator has a form that takes it as a tensor."""
    op = call.op
    if op is SCALAR or op is _aten.full.default:
        return True
    if not isinstance(op, OpOverload):
        return False
    place = _place(call, index)
    single = single_operator(op) or op
    return place is not None and _form(single, place) is not None


def _place(call: Call, index: int) -> str | None:
    """The name of the argument that a number is; ``None`` where it is one of a list of sizes or the like."""
    op = call.op
    assert isinstance(op, OpOverload)
    names = [a.name for a in op._schema.arguments]
    for name, argument in [*zip(names, call.args, strict=False), *call.kwargs]:
        if _is_number(argument, index):
            return name
        if isinstance(argument, tuple) and any(_is_number(a, index) for a in argument):
            return name if op._overloadname == "ScalarList" else None
    return None


def _is_number(template: Any, index: int) -> bool:
    return type(template) is Number and template.index == index


@cache
def _form(op: OpOverload, name: str) -> OpOverload | str | None:
    """How an operator takes the argument as a tensor: another overload, itself, or ``"factor"``."""
    name = _argument(op, name)
    if name in _FACTOR_NAMES and op._name in _FACTORS:
        return "factor"
    kinds = {a.name: str(a.type) for a in op._schema.arguments}
    kind = kinds.get(name, "")
    if kind in ("Tensor", "Optional[Tensor]"):
        return op
    if kind not in ("number", "Optional[number]"):
        return None
    position = list(kinds).index(name)
    for other in op.overloadpacket.overloads():
        overload: OpOverload = getattr(op.overloadpacket, other)
        theirs = [str(a.type) for a in overload._schema.arguments]
        mine = list(kinds.values())
        if len(theirs) != len(mine) or overload._schema.is_mutable or any(a.is_out for a in overload._schema.arguments):
            continue
        if overload._schema.arguments[position].name != name:
            continue  # a tensor of another meaning: the source of scatter.src is no value for all places
        if theirs[position].removeprefix("Optional[").rstrip("]") == "Tensor" and all(
            a == b or (a.replace("number", "Tensor") == b) for a, b in zip(mine, theirs, strict=True)
        ):
            return overload
    return None


def _argument(op: OpOverload, name: str) -> str:
    """The same argument's name in an operator for one tensor, where that of a ``_foreach`` operator is given."""
    names = [a.name for a in op._schema.arguments]
    if name in names:
        return name
    if name in ("scalar", "scalars", "weight"):
        kinds = [a.name for a in op._schema.arguments if str(a.type) in ("number", "Optional[number]")]
        return kinds[0] if kinds else name
    return name


def call_with_inputs(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], out: torch.dtype | None) -> Any:
    """Calls an operator some of whose arguments are :class:`NumberInput`.

    Args:
        op: an operator for which :func:`can_be_input` holds.
        args: its positional arguments.
        kwargs: the others.
        out: the dtype of its result, where it has one.
    """
    tensors = [a for a in [*args, *kwargs.values()] if isinstance(a, torch.Tensor)]
    names = [a.name for a in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    if op is _aten.full.default:
        value = given["fill_value"]
        dtype = given.get("dtype") or out or value.tensor.dtype
        return _aten.clone.default(_aten.expand.default(value.tensor.to(dtype), list(given["size"])))
    compute = _compute_dtype(tensors, [v for v in given.values() if isinstance(v, NumberInput)], out)

    def tensor(value: Any) -> Any:
        return value.tensor.to(compute) if isinstance(value, NumberInput) else value

    factor = next((n for n in _FACTOR_NAMES if isinstance(given.get(n), NumberInput)), None)
    if factor is not None:
        written = _FACTORS[op._name]
        operands = [tensor(v) for k, v in given.items() if k != factor]
        result = written(_plain, *operands, tensor(given[factor]))
    else:
        for name, value in given.items():
            if isinstance(value, NumberInput):
                form = _form(op, name)
                assert isinstance(form, OpOverload)
                op = form
        kinds = [str(a.type) for a in op._schema.arguments]
        like = [
            torch.scalar_tensor(a, dtype=compute) if k == "Tensor" and isinstance(a, (bool, int, float)) else tensor(a)
            for k, a in zip(kinds, args, strict=False)
        ]
        result = op(*like, **{k: tensor(v) for k, v in kwargs.items()})
    if isinstance(result, torch.Tensor) and out is not None and result.dtype is not out:
        return result.to(out)
    return result


def _plain(op: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    return op(*args)


_PLAIN = {bool: True, int: 1, float: 1.0}


def _compute_dtype(
    tensors: Sequence[torch.Tensor], numbers: Sequence[NumberInput], out: torch.dtype | None
) -> torch.dtype:
    """The dtype in which eager PyTorch has the number while it computes.

    Kernels of half precision compute in float32, and do not round the number to less (``opmath_type``).
    """
    dtype = torch.result_type(tensors[0], _PLAIN[numbers[0].type]) if tensors else (out or torch.float32)
    for t in tensors[1:]:
        dtype = torch.promote_types(dtype, t.dtype) if t.dim() >= tensors[0].dim() else dtype
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
