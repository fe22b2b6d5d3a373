"""PyTorch's tree specs to the file's trees and back."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch.utils import _pytree as pytree

from torchport.errors import SavedFileError
from torchport_runtime.trees import Tree


def tree_of_spec(spec: pytree.TreeSpec) -> Tree:
    """The tree of a spec.

    Raises:
        SavedFileError: it has a class that is no tuple, list, dict or named tuple.
    """
    if spec.is_leaf():
        return Tree("leaf")
    children = tuple(map(tree_of_spec, spec.children()))
    kind: Any = spec.type
    if kind in (tuple, list):
        return Tree(kind.__name__, children)
    if pytree.is_namedtuple_class(kind) or (isinstance(spec.context, type) and hasattr(spec.context, "_fields")):
        made: Any = spec.context if isinstance(spec.context, type) else kind
        return Tree("namedtuple", children, tuple(made._fields), made.__name__)
    if kind in (dict, OrderedDict):
        context = spec.context
        keys = context[0] if context and isinstance(context[0], list) else context
        return Tree("dict", children, tuple(keys))
    raise SavedFileError(
        f"arguments or results in a {kind.__name__} have no form in a file; use tuples, lists and dicts"
    )


def spec_of_tree(tree: Tree) -> pytree.TreeSpec:
    """The spec of a tree."""
    return pytree.tree_structure(tree.unflatten([0] * tree.leaf_count))
