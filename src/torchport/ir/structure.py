"""How an operator groups its outputs, which a call has as one flat list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchport.ir.call import Call


def output_structure(call: Call) -> tuple[int | None, ...]:
    """How a call's flattened outputs were grouped: per result of the operator a list's length, or ``None`` for one.

    Raises:
        ValueError: the operator returns several lists, and its arguments do not tell their lengths.
    """
    schema = getattr(call.op, "_schema", None)
    if schema is None:
        return (None,) * len(call.outputs)
    lists = [str(r.type).startswith("List[") for r in schema.returns]
    lengths: list[int | None] = [None] * len(lists)
    if sum(lists) == 1:
        lengths[lists.index(True)] = len(call.outputs) - len(lists) + 1
    elif any(lists):
        # Such operators (the fused optimizers) return list x as x_out, each as long as the argument.
        names = [a.name for a in schema.arguments]
        given = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
        for i, r in enumerate(schema.returns):
            argument = given.get(r.name.removesuffix("_out"), ())
            lengths[i] = (len(argument) if isinstance(argument, tuple) else 0) if lists[i] else None
    if sum(1 if n is None else n for n in lengths) != len(call.outputs) or any((n or 0) < 0 for n in lengths):
        returns = ", ".join(str(r.type) for r in schema.returns)
        raise ValueError(f"{call!r} has {len(call.outputs)} outputs, which do not fit its results ({returns})")
    return tuple(lengths)


def grouped(structure: Sequence[int | None], flat: Sequence[Any]) -> Any:
    """The flat outputs as the operator returns them: one, a list, or a tuple of these."""
    left = iter(flat)
    groups = [next(left) if n is None else [next(left) for _ in range(n)] for n in structure]
    return groups[0] if len(groups) == 1 else tuple(groups)
