"""Operators by their qualified names."""

from __future__ import annotations

from collections.abc import Iterable
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


def with_effects(ops: Iterable[Any]) -> list[str]:
    """Those operators that a graph from a file must not call, each with the reason.

    A captured graph computes tensors from tensors. One from a stranger may name whatever PyTorch registers: operators
    that write to files, that write to weights where a file is mapped, that run other code.
    """
    reasons = {op: _effect(op) for op in ops}
    return [f"{operator_name(op)}: {reason}" for op, reason in reasons.items() if reason]


def _effect(op: Any) -> str:
    if op in SPECIAL_OPS.values():
        return ""
    if not isinstance(op, OpOverload):
        return "it runs other code"
    schema = op._schema
    if not torch._C._dispatch_has_kernel(f"{schema.name}.{schema.overload_name}".removesuffix(".")):
        return "it is TorchScript's, and no operator of tensors"  # aten::save pickles into a file
    if schema.is_mutable:
        return "it writes to its inputs"
    takes_text = any("str" in str(argument.type) for argument in schema.arguments)
    if schema.name == "aten::from_file" or (takes_text and not schema.name.startswith(_WHERE_TEXTS_ARE_MODES)):
        return "it takes a text, which may name a file"
    return ""


_WHERE_TEXTS_ARE_MODES = ("aten::", "prims::", "quantized_decomposed::")


def operator_names() -> list[str]:
    """The qualified names of all operators with a schema that exist now, and of the special ones."""
    names = list(SPECIAL_OPS)
    for full in torch._C._dispatch_get_all_op_names():
        base, _, overload = full.partition(".")
        names.append(f"{base.replace('::', '.', 1)}.{overload or 'default'}")
    return names
