"""Operators by their qualified names."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from torchport.ir.call import SPECIAL_OPS


def operator_name(op: Any) -> str:
    """The qualified name of an operator: ``aten.mm.default``, ``higher_order.cond``, ``port.scalar``."""
    return f"higher_order.{op}" if isinstance(op, HigherOrderOperator) else str(op)


def find_operator(name: str) -> Any:
    """The operator of a qualified name, ``None`` where there is none.

    Invariant: ``find_operator(operator_name(op)) is op`` (tests/unit/test_ir_operators.py).
    """
    if name in SPECIAL_OPS:
        return SPECIAL_OPS[name]
    found: Any = torch.ops
    for part in name.split(".", 2):
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload | HigherOrderOperator) else None


def operator_names() -> list[str]:
    """The qualified names of all operators with a schema that exist now, and of the special ones."""
    names = list(SPECIAL_OPS)
    for full in torch._C._dispatch_get_all_op_names():
        base, _, overload = full.partition(".")
        names.append(f"{base.replace('::', '.', 1)}.{overload or 'default'}")
    return names
