"""The table, and from a graph to a function of jax."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchport.backends.xla.lowering import indexing, pointwise, products, reductions, shapes
from torchport.backends.xla.lowering.dtypes import JAX

TABLE: dict[Any, Callable[..., Any]] = {
    **pointwise.TABLE,
    **shapes.TABLE,
    **reductions.TABLE,
    **indexing.TABLE,
    **products.TABLE,
}
"""Every operator that there is a lowering of."""


_OF_NO_MEANING = frozenset({"device", "layout", "memory_format", "pin_memory"})
"""Arguments on where and how a tensor lies, which a value has not."""


def refusal(node: fx.Node) -> str:
    """Why there is no lowering of a node; empty where there is one."""
    if node.target is operator.getitem:
        return ""
    if node.target not in TABLE:
        return f"there is no lowering of {node.target} to XLA here"
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    for value in (v for x in values for v in (x if isinstance(x, (list, tuple)) else [x])):
        if isinstance(value, torch.Tensor) and value.dtype not in JAX:
            return f"jax has no type for {value.dtype}"
    if node.target is torch.ops.aten.index.Tensor or node.target is torch.ops.aten.index_put.default:
        indices: Any = node.args[1]
        if any(isinstance(i, fx.Node) and i.meta["val"].dtype in (torch.bool, torch.uint8) for i in indices):
            return "a mask as index selects as many elements as it has true ones, which XLA cannot know"
    return ""


def lowered(module: fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
    """A function of jax that computes a graph."""
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    inputs = module.graph.find_nodes(op="placeholder")
    outputs: Any = module.graph.output_node().args[0]

    def run(*arrays: Any) -> tuple[Any, ...]:
        values: dict[fx.Node, Any] = dict(zip(inputs, arrays, strict=True))
        for node in nodes:
            args = fx.node.map_arg(node.args, values.__getitem__)
            kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
            if node.target is operator.getitem:
                values[node] = args[0][args[1]]
            else:
                given = {
                    k: v for k, v in kwargs.items() if k not in ("device", "layout", "pin_memory", "memory_format")
                }
                values[node] = TABLE[node.target](node, *args, **given)
        return tuple(values[n] for n in outputs)

    return run
