"""``aten._foreach_*`` as one operator per tensor: what compilers fuse best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

_PREFIX = "aten::_foreach_"
_RENAMED = {"maximum": "clamp_min", "minimum": "clamp_max", "norm": "linalg_vector_norm", "powsum": None, "copy": None}
"""Names that differ where the other argument is a number; ``None``: not per tensor, or written otherwise below."""
_OVERLOADS = {
    "List": ("Tensor", "default"),
    "Tensor": ("Tensor", "default"),
    "Scalar": ("Tensor_Scalar", "Scalar", "default"),
    "ScalarList": ("Tensor_Scalar", "Scalar", "default"),
    "default": ("default",),
}


def single_operator(op: OpOverload) -> OpOverload | None:
    """The operator that a functional ``_foreach`` operator calls for each tensor; ``None`` where there is none such."""
    if not op._name.startswith(_PREFIX) or op._schema.is_mutable:
        return None
    name = op._schema.name.removeprefix(_PREFIX)
    overload = op._overloadname
    if overload not in _OVERLOADS:
        return None
    if overload in ("Scalar", "ScalarList") or name in ("norm", "copy", "powsum"):
        name = _RENAMED.get(name, name)  # type: ignore[assignment]
    packet = getattr(torch.ops.aten, name, None) if name else None
    if packet is None:
        return None
    for candidate in _OVERLOADS[overload]:
        if candidate in packet.overloads():
            found: OpOverload = getattr(packet, candidate)
            return found
    return None


def per_tensor(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], call: Callable[..., torch.Tensor]
) -> list[torch.Tensor]:
    """The results of a ``_foreach`` operator, by ``call(operator, args, kwargs)`` for each tensor.

    Args:
        op: one for which :func:`single_operator` knows another.
        args: its positional arguments; a list has an item per tensor.
        kwargs: the others.
        call: calls an operator.
    """
    single = single_operator(op)
    assert single is not None

    def item(argument: Any, index: int) -> Any:
        return argument[index] if isinstance(argument, (list, tuple)) else argument

    schema = single._schema.arguments
    names = {a.name for a in schema}
    places = [a.name for a in schema if not a.kwarg_only]
    # `addcdiv` and its like take by name what the list's form takes in its place.
    by_name = dict(zip((a.name for a in schema if a.kwarg_only), args[len(places) :], strict=False))
    by_name.update({k: v for k, v in kwargs.items() if k in names})
    return [
        call(single, [item(a, i) for a in args[: len(places)]], {k: item(v, i) for k, v in by_name.items()})
        for i in range(len(args[0]))
    ]
