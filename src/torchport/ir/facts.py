"""What a graph takes and gives, in the runtime's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchport.ir.call import PARTITION
from torchport.ir.graph import Graph
from torchport.ir.node import Node
from torchport.ir.shape import Shape, dtype_name
from torchport_runtime.facts import GraphFacts, TensorFacts


def facts_of(graph: Graph) -> GraphFacts:
    """The facts of a graph."""
    return GraphFacts(
        [_tensor(n.value().shape) for n in graph.parameters],
        _types(n.numbers[i] for n, i in graph.numbers),
        [_tensor(v.shape) for v in graph.results],
        [(str(n.call.args[0]), facts_of_call(n)) for n in graph.nodes if n.op is PARTITION],
    )


def facts_of_call(node: Node) -> GraphFacts:
    """What a ``port.partition`` node is called with and gives."""
    return GraphFacts(list(map(_tensor, node.call.inputs)), _types(node.numbers), list(map(_tensor, node.call.outputs)))


def _tensor(shape: Shape | None) -> TensorFacts:
    if shape is None:
        return "nothing", ()
    return dtype_name(shape.dtype), tuple(
        [s if isinstance(s, str) else "?" if s else n for n, s in zip(shape.sizes, shape.symbolic, strict=True)]
    )


def _types(numbers: Iterable[Any]) -> list[type]:
    """Their types; one that follows from sizes is a whole number."""
    return [int if isinstance(n, int) and not isinstance(n, bool) else type(n) for n in numbers]
