"""Whether a compiler takes a call: it is decomposed by itself, and every operator that comes of it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._ops import OpOverload

from torchport.backend.capabilities import Support
from torchport.backend.compiler.inputs import plan_inputs
from torchport.backend.compiler.retracing import Decompositions, retrace
from torchport.ir.call import DEVICE_DATA, Call
from torchport.ir.graph import Graph
from torchport.ir.node import Node, Value


def support_of(
    call: Call, numbers: Sequence[Any], decompositions: Decompositions, supports: Callable[[fx.Node], Support]
) -> Support:
    """The first refusal among the operators that a call decomposes to; or that it cannot be decomposed.

    Args:
        call: an operator's.
        numbers: the numbers of a node of it.
        decompositions: the compiler's.
        supports: the compiler's answer for a node of the decomposed graph.
    """
    leaves = [Node(Call(DEVICE_DATA, outputs=(shape,))) for shape in call.inputs]
    node = Node(call, tuple(leaf.value() for leaf in leaves), tuple(numbers))
    results = [Value(node, i) for i, shape in enumerate(call.outputs) if shape is not None]
    graph = Graph([*leaves, node], results)
    try:
        module = retrace(graph, plan_inputs(graph, list(numbers)), decompositions)
    except Exception as error:  # noqa: BLE001 - PyTorch's decompositions raise what they like; it is the reason
        return Support(False, f"it cannot be decomposed: {type(error).__name__}: {error}")
    for made in module.graph.nodes:
        if made.op == "call_function":
            answer = (
                supports(made)
                if isinstance(made.target, OpOverload) or made.target.__module__ == "_operator"
                else Support(False, f"{made.target} is no ATen operator")
            )
            if not answer:
                return answer
    return Support(True)
