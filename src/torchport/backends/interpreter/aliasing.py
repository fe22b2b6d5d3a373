"""Which operands each output of an operator may share memory with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.ir.call import TENSOR_LIST, Call, Operand

UNDECLARED_ALIASES = frozenset(
    {
        "aten::_fw_primal",
        "aten::_nested_get_values",
        "aten::_reshape_alias",
        "aten::_unsafe_view",
        "aten::lift",
        "aten::native_dropout",
        "aten::unsafe_chunk",
        "aten::unsafe_split",
        "aten::unsafe_split_with_sizes",
    }
)
"""Operators that may return (a part of) an operand although their schema does not say so.

Found by running every functional overload of PyTorch's OpInfo table and comparing storages; composite operators need
no entry, since they are always taken to alias.
"""


FRESH_COMPOSITES = frozenset({"aten::linear"})
"""Composite operators that always make a new tensor: a product of matrices is none of its operands."""


def operand_indices(template: Any) -> Iterator[int]:
    """The indices of the operands in an argument's template."""
    if type(template) is Operand:
        yield template.index
    elif type(template) is tuple:
        for item in template:
            yield from operand_indices(item)


def declared_aliases(op: OpOverload) -> bool:
    """Whether the schema says that an output is (a part of) an argument."""
    return any(r.alias_info is not None for r in op._schema.returns)


def _is_composite(op: OpOverload) -> bool:
    if op._name in FRESH_COMPOSITES:
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(op._name, "CompositeImplicitAutograd")


def may_alias(call: Call) -> tuple[tuple[int, ...], ...]:
    """For each output of the call, the operands whose memory it may share.

    A composite operator is written in other operators, and may return an operand or a view of it as it likes: its
    outputs are taken to alias every operand.
    """
    count = len(call.outputs)
    op = call.op
    if op is TENSOR_LIST:
        return tuple((i,) for i in range(count))
    if not isinstance(op, OpOverload):
        return ((),) * count
    schema = op._schema
    if schema.name in UNDECLARED_ALIASES or _is_composite(op):
        return (tuple(range(len(call.inputs))),) * count
    if not declared_aliases(op):
        return ((),) * count
    kwargs = dict(call.kwargs)
    by_set: dict[str, set[int]] = {}
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is None:
            continue
        template = call.args[i] if i < len(call.args) else kwargs.get(argument.name)
        for name in argument.alias_info.before_set:
            by_set.setdefault(name, set()).update(operand_indices(template))
    if len(schema.returns) == count and all(isinstance(r.type, torch.TensorType) for r in schema.returns):
        sets = [r.alias_info.before_set if r.alias_info is not None else () for r in schema.returns]
        return tuple(tuple(sorted(set().union(*(by_set.get(n, set()) for n in names)))) for names in sets)
    aliased = tuple(sorted(set().union(*by_set.values())))
    return (aliased,) * count
