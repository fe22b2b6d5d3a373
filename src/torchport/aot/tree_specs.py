"""PyTorch's tree specs to the file's trees and back.

A class is in a file by its name. Where a file is loaded, the name is looked for among the classes that are imported and
registered with PyTorch already; nothing is imported for it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchport.errors import DamagedFileError, SavedFileError
from torchport_runtime.trees import Tree


class _Nothing:
    """Stands for a ``None`` that is no leaf, where a tree spec is made."""


pytree.register_pytree_node(
    _Nothing, lambda nothing: ([], None), lambda leaves, context: None, serialized_type_name="torchport.nothing"
)


def tree_of_spec(spec: pytree.TreeSpec) -> Tree:
    """The tree of a spec.

    Raises:
        SavedFileError: it has a class, or a key of a dict, that has no form in a file.
    """
    if spec.is_leaf():
        return Tree("leaf")
    children = tuple(map(tree_of_spec, spec.children()))
    kind: Any = spec.type
    context: Any = spec.context
    if kind in (tuple, list):
        return Tree(kind.__name__, children)
    if kind in (dict, OrderedDict, defaultdict):
        return Tree("dict", children, _keys(context[1] if kind is defaultdict else context))
    if kind is _Nothing:
        return Tree("none")
    if _is_return_type(kind):
        return Tree("return_type", children, tuple(kind.__match_args__), kind.__name__)
    if pytree.is_namedtuple_class(kind) or (isinstance(context, type) and hasattr(context, "_fields")):
        made: Any = context if isinstance(context, type) else kind
        return _checked(Tree("namedtuple", children, tuple(made._fields), made.__name__))
    name = f"{kind.__module__}:{kind.__qualname__}"
    if issubclass(kind, Mapping) and isinstance(context, list) and len(context) == len(children):
        return Tree("mapping", children, _keys(context), name)
    if is_dataclass(kind) and isinstance(context, list) and [len(c) for c in context[:1]] == [len(children)]:
        there, absent = context
        items = dict(zip(there, children, strict=True)) | dict.fromkeys(absent, Tree("none"))
        in_class = [f.name for f in fields(kind) if f.name in items]
        if [name for name in in_class if name in there] == there:  # else the leaves have an order of their own
            items = {name: items[name] for name in in_class}
        return _checked(Tree("dataclass", tuple(items.values()), tuple(items), name))
    raise SavedFileError(
        f"arguments or results in a {kind.__name__} have no form in a file; use tuples, lists, dicts, named tuples, or "
        "a dataclass or mapping that is registered with torch.utils._pytree"
    )


def _is_return_type(kind: Any) -> bool:
    return vars(torch.return_types).get(kind.__name__) is kind


def _keys(keys: list[Any]) -> tuple[Any, ...]:
    wrong = [k for k in keys if type(k) not in (str, int)]
    if wrong:
        raise SavedFileError(f"a dict with the key {wrong[0]!r:.60} has no form in a file; use texts or whole numbers")
    return tuple(keys)


def _checked(tree: Tree) -> Tree:
    """A tree with a named tuple that a target can make."""
    try:
        tree.builder()
    except DamagedFileError as error:
        raise SavedFileError(str(error).removeprefix("manifest.json: ")) from error
    return tree


def spec_of_tree(tree: Tree) -> pytree.TreeSpec:
    """The spec of a tree; a class that is not imported here is a dict or a named tuple.

    Raises:
        SavedFileError: a class that is here does not take the items.
    """
    return pytree.tree_structure(_example(tree))


def _example(tree: Tree) -> Any:
    """A value of the form."""
    if tree.kind == "leaf":
        return torch.empty(0)
    if tree.kind == "none":
        return _Nothing()
    items = [_example(c) for c in tree.children]
    if tree.kind == "return_type":
        return_type = vars(torch.return_types).get(tree.name)
        if not isinstance(return_type, type) or getattr(return_type, "__match_args__", None) != tree.keys:
            raise SavedFileError(f"this PyTorch has no torch.return_types.{tree.name} of {', '.join(tree.keys)}")
        return return_type(items)
    if tree.kind in ("dataclass", "mapping"):
        known = _imported(tree.name, tree.kind)
        if known is not None:
            return _of_class(known, tree, items)
    if tree.kind in ("dict", "mapping"):
        return dict(zip(tree.keys, items, strict=True))
    return Tree(tree.kind, (Tree("leaf"),) * len(items), tree.keys, tree.name).unflatten(items)


def _imported(name: str, kind: str) -> type | None:
    """The class of a name, if it is imported here, and PyTorch takes it apart as one of its kind."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        # Not getattr: a module may import what it is asked for.
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if not isinstance(found, type) or found not in pytree.SUPPORTED_NODES:
        return None
    return found if (issubclass(found, Mapping) if kind == "mapping" else is_dataclass(found)) else None


def _of_class(known: type, tree: Tree, items: list[Any]) -> Any:
    given = {k: None if isinstance(x, _Nothing) else x for k, x in zip(tree.keys, items, strict=True)}
    there = [x for x in given.values() if x is not None]
    context: Any = list(given)
    if tree.kind == "dataclass":
        context = [[k for k, x in given.items() if x is not None], [k for k, x in given.items() if x is None]]
    try:
        made = pytree.SUPPORTED_NODES[known].unflatten_fn(there if tree.kind == "dataclass" else items, context)
        spec = pytree.tree_structure(made)
    except Exception as error:
        raise SavedFileError(f"{tree.name} does not take {', '.join(map(str, tree.keys))} here: {error}") from error
    if tree_of_spec(spec) != tree:
        raise SavedFileError(f"{tree.name} has other items here than {', '.join(map(str, tree.keys))}")
    return made
