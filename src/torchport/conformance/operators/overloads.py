"""Which operators are tried, and in which dtypes."""

from __future__ import annotations

from functools import cache

import torch
from torch._ops import OpOverload

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64")
"""The dtypes of the table, in its order; an operator is judged by the first of these that it has."""
QUICK_DTYPES = ("float32", "int64", "bool")

UNINITIALISED = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_"})
"""Operators whose results nobody has written: their values are not compared."""


@cache
def core_overloads() -> tuple[OpOverload, ...]:
    """The operators of core ATen, by name: those that PyTorch has tagged so."""
    found = []
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        base, _, overload = name.partition(".")
        if namespace != "aten":
            continue
        packet = getattr(torch.ops.aten, base, None)
        op = getattr(packet, overload or "default", None)
        if isinstance(op, OpOverload) and torch.Tag.core in op.tags:
            found.append(op)
    return tuple(sorted(found, key=str))


def is_random(op: OpOverload) -> bool:
    """Whether it draws from the generator."""
    return torch.Tag.nondeterministic_seeded in op.tags


def has_values(op: OpOverload) -> bool:
    """Whether its results are written."""
    return op._schema.name not in UNINITIALISED


def returns_views(op: OpOverload) -> bool:
    """Whether a result may be another look at the memory of an argument."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
