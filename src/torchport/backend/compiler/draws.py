"""Random numbers that are drawn before a compiled program runs, and are inputs of it.

A compiler's own random numbers would be others than PyTorch's. Where what is drawn does not depend on what is computed
(dropout's mask, ``rand``, ``normal_``), it is drawn by the interpreter, in the order of the graph: every compiler has
eager's numbers then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchport.backend.capabilities import Support
from torchport.ir.call import Call, operand
from torchport.ir.graph import Graph
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape

_aten = torch.ops.aten
_FILLS = frozenset(
    {
        "aten::bernoulli.p",
        "aten::cauchy",
        "aten::exponential",
        "aten::geometric",
        "aten::log_normal",
        "aten::normal_functional",
        "aten::rand_like",
        "aten::randint_like",
        "aten::randint_like.low_dtype",
        "aten::randn_like",
        "aten::random",
        "aten::random.from",
        "aten::random.to",
        "aten::uniform",
    }
)
"""They take a tensor for its layout only."""


def can_be_drawn(call: Call) -> Support:
    """Whether what a random operator draws is known without computing anything."""
    if not call.inputs or call.op is _aten.native_dropout.default or getattr(call.op, "_name", "") in _FILLS:
        return Support(True)
    return Support(False, f"{call.name} draws from a distribution that is computed; the interpreter does that")


def dropout_draws(call: Call) -> bool:
    """Whether a call of ``aten.native_dropout`` draws a mask: not when it is told that it does not train."""
    return call.args[2] is not False and all(call.inputs[0].sizes)


def draw_graph(graph: Graph) -> Graph | None:
    """A graph without parameters that draws everything the graph draws, one result per random node that draws.

    For ``aten.native_dropout`` that is the mask; for others what they return. The numbers of the nodes are its numbers,
    in the same order. ``None`` when nothing is drawn.
    """
    nodes: list[Node] = []
    results: list[Value] = []
    for node in graph.nodes:
        call = node.call
        if not call.is_random:
            continue
        if call.op is _aten.native_dropout.default:
            if not dropout_draws(call):
                continue
            shape = call.inputs[0]
            mask = Shape(torch.bool, shape.sizes, shape.strides)
            empty = _empty(mask)
            keep = 1.0 - call.args[1]
            drawn = Node(
                Call(_aten.bernoulli.p, (operand(0), keep), inputs=(mask,), outputs=(mask,)),
                (empty.value(),),
                location=node.location,
            )
            nodes += [empty, drawn]
        elif call.inputs:
            empty = _empty(call.inputs[0])
            drawn = Node(call, (empty.value(),) * len(call.inputs), node.numbers, node.location)
            nodes += [empty, drawn]
        else:
            drawn = Node(call, (), node.numbers, node.location)
            nodes.append(drawn)
        results += [Value(drawn, i) for i in range(len(drawn.outputs))]
    return Graph(nodes, results) if results else None


def _empty(shape: Shape) -> Node:
    kwargs = (("dtype", shape.dtype),)
    return Node(Call(_aten.empty_strided.default, (shape.sizes, shape.strides), kwargs, outputs=(shape,)))


def dropout_of(call: Call, x: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """``aten.native_dropout`` with its mask given.

    Source: native_dropout_cpu in aten/src/ATen/native/Dropout.cpp.

    Args:
        call: of ``aten.native_dropout``.
        x: the operand.
        mask: what was drawn; ``None`` where nothing was.
    """
    if mask is None:
        return _aten.clone.default(x), torch.ones_like(x, dtype=torch.bool)
    keep = 1.0 - call.args[1]
    return (x * mask) * (0.0 if keep == 0 else 1.0 / keep), mask


def drawn_shapes(draws: Graph | None) -> Sequence[Shape]:
    """The shapes of what is drawn."""
    return () if draws is None else [v.shape for v in draws.results]
