"""``torch.cond`` in a captured graph: both branches are computed, and one's results are picked.

A graph of ours has operators only, so that every backend can run it. Branches of ``torch.cond`` have no side effects
and give results of the same sizes and dtypes, so picking afterwards gives the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from torchport.errors import CaptureError


def inline_conditionals(method: str, module: fx.GraphModule) -> None:
    """Replaces every ``torch.cond`` of a functional graph, and those inside its branches.

    Args:
        method: the method's name, for messages.
        module: the graph; it is changed.

    Raises:
        CaptureError: the predicate is no tensor, the branches' results cannot be picked from, or there is another
            operator that takes graphs.
    """
    for node in list(module.graph.nodes):
        if node.target is torch.ops.higher_order.cond:
            _inline(method, module, node)
        elif isinstance(node.target, HigherOrderOperator):
            raise CaptureError(
                f"{method} cannot be captured: torch's {node.target.name()} runs graphs of its own, which has no form "
                "here. Write it with operators and a Python loop of a fixed number of steps, or lower what is inside "
                "as a method."
            )
    for node in [n for n in module.graph.nodes if n.op == "get_attr" and not n.users]:
        module.graph.erase_node(node)


def _inline(method: str, module: fx.GraphModule, node: fx.Node) -> None:
    predicate: Any = node.args[0]
    if not (isinstance(predicate, fx.Node) and isinstance(predicate.meta.get("val"), torch.Tensor)):
        raise CaptureError(
            f"{method} cannot be captured: the predicate of a torch.cond follows from sizes that vary. Make it a "
            "tensor, such as torch.tensor(x.shape[0]) > 4, or lower a method for each case."
        )
    with module.graph.inserting_before(node):
        if predicate.meta["val"].dim():
            predicate = _call(module.graph, node, torch.ops.aten.view.default, predicate, [])
        operands: Any = node.args[3]
        ways = [_branch(method, module, which, operands, node) for which in node.args[1:3]]
        picked = [_pick(method, module.graph, node, predicate, *pair) for pair in zip(*ways, strict=True)]
    for getitem in list(node.users):
        index: Any = getitem.args[1]
        getitem.replace_all_uses_with(picked[index])
        module.graph.erase_node(getitem)
    module.graph.erase_node(node)


def _branch(method: str, module: fx.GraphModule, which: Any, operands: Sequence[Any], node: fx.Node) -> list[Any]:
    """The results of a branch, whose nodes are copied before the call."""
    branch = module.get_submodule(which.target)
    assert isinstance(branch, fx.GraphModule)
    inline_conditionals(method, branch)
    placeholders = [n for n in branch.graph.nodes if n.op == "placeholder"]
    own: dict[fx.Node, Any] = dict(zip(placeholders, operands, strict=True))
    results: Any = module.graph.graph_copy(branch.graph, own)
    for copied in own.values():
        if isinstance(copied, fx.Node):
            for key in ("nn_module_stack", "stack_trace"):
                if key in node.meta:
                    copied.meta.setdefault(key, node.meta[key])
    return list(results)


def _pick(method: str, graph: fx.Graph, node: fx.Node, predicate: fx.Node, a: Any, b: Any) -> Any:
    one, other = (x.meta.get("val") if isinstance(x, fx.Node) else x for x in (a, b))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype is other.dtype and list(map(str, one.shape)) == list(map(str, other.shape)):
            return _call(graph, node, torch.ops.aten.where.self, predicate, a, b)
    elif not any(isinstance(x, fx.Node) for x in (a, b)) and a == b:
        return a
    raise CaptureError(
        f"{method} cannot be captured: the branches of a torch.cond give results that are no tensors of one dtype and "
        "the same sizes. Make them so, or lower a method for each case."
    )


def _call(graph: fx.Graph, near: fx.Node, op: Any, *args: Any) -> fx.Node:
    made = graph.call_function(op, args)
    made.meta = {k: near.meta[k] for k in ("nn_module_stack", "stack_trace") if k in near.meta}
    made.meta["val"] = op(*(x.meta["val"] if isinstance(x, fx.Node) else x for x in args))
    return made
