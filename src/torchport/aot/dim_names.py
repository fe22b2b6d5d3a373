"""The names that sizes have in a capture: those that the user gave them, else ``s0``, ``s1``, …"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

_TAKEN = re.compile(r"[es]\d+|min|max")
"""Names that captures make up themselves, and the functions of expressions."""


class SymbolNames(dict[str, str]):
    """Torch's name of a symbol → ours.

    Args:
        given: leaf of the inputs and dimension → the name that the user gave this size.
    """

    def __init__(self, given: Mapping[tuple[int, int | None], str]) -> None:
        super().__init__()
        self._given = given

    def add(self, symbol: str, leaf: int, dim: int | None) -> str:
        """Names a symbol after the place where it was first met."""
        name = self._given.get((leaf, dim), "")
        if not name.isidentifier() or _TAKEN.fullmatch(name) or name in self.values():
            name = f"s{len(self)}"
        self[symbol] = name
        return name


def given_names(
    method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> dict[tuple[int, int | None], str]:
    """The names of the ``Dim`` objects of ``dynamic_shapes``, by leaf of the inputs and dimension.

    Args:
        method: what is captured.
        args: the example arguments, each tensor another object.
        kwargs: those that are given by name, in the order of the capture's inputs.
        dynamic_shapes: as for ``torch.export.export``.
    """
    bound = inspect.signature(method).bind(*args, **kwargs).arguments
    leaf_of = {id(x): i for i, x in enumerate(pytree.tree_leaves((tuple(args), dict(kwargs))))}
    return {(leaf_of[key], dim): name for key, dim, name in _dims(bound, dynamic_shapes) if key in leaf_of}


def _dims(value: Any, shapes: Any) -> Iterator[tuple[int, int, str]]:
    """For each size of a tensor that has a name, the tensor's id, the dimension, and the name."""
    if not isinstance(shapes, Mapping | list | tuple):
        return
    if isinstance(value, torch.Tensor):
        dims = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes)
        yield from ((id(value), int(dim), size.__name__) for dim, size in dims if type(size) is Dim)
        return
    if isinstance(value, Mapping) and isinstance(shapes, Mapping):
        pairs = [(value[key], shapes[key]) for key in value if key in shapes]
    else:
        items = (
            value.values() if isinstance(value, Mapping) else pytree.tree_flatten(value, lambda x: x is not value)[0]
        )
        pairs = list(zip(items, shapes.values() if isinstance(shapes, Mapping) else shapes, strict=False))
    for item, of_item in pairs:
        yield from _dims(item, of_item)
