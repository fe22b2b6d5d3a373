"""The flat inputs and results of a method, by name: ``x``, ``mask``, ``cache.0.key``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torchport_runtime.errors import InvalidArgumentError
from torchport_runtime.manifest import Method, Slot
from torchport_runtime.trees import Tree

_PLACES = {"POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD"}


def input_names(method: Method) -> list[str]:
    """The name of each flat input: that of the parameter, then the way into a nested one, with dots."""
    positional, named = method.in_tree.children
    names = [*_positional(method), *map(str, named.keys)]
    children = (*positional.children, *named.children)
    return [way for name, child in zip(names, children, strict=True) for way in _ways(child, name)]


def _positional(method: Method) -> list[str]:
    count = len(method.in_tree.children[0].children)
    keywords = set(method.in_tree.children[1].keys)
    names = [p.name for p in method.parameters if p.kind in _PLACES and p.name not in keywords][:count]
    rest = next((p.name for p in method.parameters if p.kind == inspect.Parameter.VAR_POSITIONAL.name), "argument")
    return names + [f"{rest}.{i}" for i in range(count - len(names))]


def result_names(method: Method) -> list[str]:
    """The name of each flat result: the way to it, with dots; ``result`` where the method returns a single one."""
    return list(_ways(method.out_tree, "")) if method.out_tree.kind != "leaf" else ["result"]


def _ways(tree: Tree, way: str) -> Iterator[str]:
    if tree.kind == "leaf":
        yield way
        return
    keys = tree.keys or range(len(tree.children))
    for key, child in zip(keys, tree.children, strict=True):
        yield from _ways(child, f"{way}.{key}" if way else str(key))


def text_of(slot: Slot) -> str:
    """What an input is, in words: ``f32[batch, 8]``, ``a whole number``, ``3``."""
    if slot.kind == "tensor":
        return f"{slot.dtype}[{', '.join(map(str, slot.sizes))}]"
    return "a whole number" if slot.kind == "int" else f"{slot.value!r}"


def call_arguments(method: Method, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, from flat inputs by name; constants of the capture need not be given.

    Raises:
        InvalidArgumentError: names that the method lacks, or inputs that are missing; all are listed.
    """
    names = input_names(method)
    wrong = []
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            wrong.append(f"there is no input {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    leaves = []
    for name, slot in zip(names, method.inputs, strict=True):
        if name not in given and slot.kind != "constant":
            wrong.append(f"{name} is missing")
        leaves.append(given.get(name, slot.value))
    if wrong:
        wanted = [f"{n}: {text_of(s)}" for n, s in zip(names, method.inputs, strict=True) if s.kind != "constant"]
        raise InvalidArgumentError("; ".join(wrong) + f". The inputs are {', '.join(wanted) or 'none'}")
    args, kwargs = method.in_tree.unflatten(leaves)
    return args, kwargs


def flat_results(method: Method, result: Any) -> dict[str, Any]:
    """A method's result, flat, by name."""
    return dict(zip(result_names(method), method.out_tree.flatten(result), strict=True))
