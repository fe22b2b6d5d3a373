"""Convex parts, reasons for what is left, and errors that list every node (cases 29 and 30)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aot.subjects import Blocks, Switched, registered, spec_of
from torchport.aot.to_backend import to_backend
from torchport.errors import UnsupportedNodesError
from torchport.ir.call import DEVICE_DATA, Call, operand
from torchport.ir.graph import Graph
from torchport.ir.node import Node
from torchport.ir.partition import cut
from torchport.ir.shape import Shape

X = torch.randn(3, 6)


def test_what_is_refused_runs_in_the_interpreter_and_is_explained() -> None:
    backend = Switched()
    backend.refuses = lambda node: "sin" in node.call.name
    module = Blocks().eval()
    with registered("switched", backend):
        lowered = to_backend("switched", module, spec_of(X))
        torch.testing.assert_close(lowered(X), module(X).detach())
    text = lowered.explain()
    assert "nodes in 2 parts run on switched" in text
    assert "aten.sin.default at " in text
    assert f"{Path(__file__).parent / 'subjects.py'}:" in text
    assert "it was told so" in text


def test_without_partitioning_every_refused_node_is_listed_with_its_line() -> None:
    backend = Switched()
    backend.refuses = lambda node: node.call.name in ("aten.sin.default", "aten.relu.default")
    with registered("switched", backend), pytest.raises(UnsupportedNodesError) as raised:
        to_backend("switched", Blocks(), spec_of(X), partition=False)
    text = str(raised.value)
    assert "3 of " in text
    assert text.count("aten.relu.default at ") == 2
    assert "subjects.py:" in text
    assert "partition=True" in text


def test_a_part_never_makes_a_cycle() -> None:
    class Diamond(nn.Module):
        def forward(self, x):
            a = x + 1
            b = torch.sin(a)
            return a * 2 + b

    backend = Switched()
    backend.refuses = lambda node: "sin" in node.call.name
    with registered("switched", backend):
        lowered = to_backend("switched", Diamond(), spec_of(X))
        torch.testing.assert_close(lowered(X), Diamond()(X))
        assert "2 parts" in lowered.explain()


def test_cutting_refuses_parts_that_would_make_a_cycle() -> None:
    shape = Shape(torch.float32, (3,))
    leaf = Node(Call(DEVICE_DATA, outputs=(shape,)))

    def relu(of: Node) -> Node:
        return Node(Call(torch.ops.aten.relu.default, (operand(0),), (), (shape,), (shape,)), (of.value(),))

    a = relu(leaf)
    b = relu(a)
    c = relu(b)
    graph = Graph([leaf, a, b, c], [c.value()])
    with pytest.raises(ValueError, match="the parts would make a cycle"):
        cut(graph, [[a, c]], ["p0"])
    outer, parts = cut(graph, [[a, b]], ["p0"])
    assert len(outer) == 3
    assert len(parts["p0"]) == 3


def test_a_quantized_group_stays_whole() -> None:
    class Quantized(nn.Module):
        def forward(self, x, y):
            q = torch.ops.quantized_decomposed
            a = q.dequantize_per_tensor.default(x, 0.1, 0, 0, 255, torch.uint8)
            b = q.dequantize_per_tensor.default(y, 0.1, 0, 0, 255, torch.uint8)
            return q.quantize_per_tensor.default(torch.sin(a + b), 0.1, 0, 0, 255, torch.uint8), (a + 1)

    import torch.ao.quantization.fx._decomposed

    x = torch.randint(0, 255, (4,), dtype=torch.uint8)
    backend = Switched()
    backend.refuses = lambda node: node.call.name == "aten.add.Tensor" and len(node.operands) == 2
    with registered("switched", backend):
        lowered = to_backend("switched", Quantized(), spec_of(x, x))
        wanted = Quantized()(x, x)
        torch.testing.assert_close(lowered(x, x), wanted)
    assert "it stays with aten.add.Tensor, which is refused" in lowered.explain()


def test_a_backend_that_refuses_everything_leaves_it_to_the_interpreter() -> None:
    backend = Switched()
    backend.refuses = lambda node: True
    module = Blocks().eval()
    with registered("switched", backend):
        lowered = to_backend("switched", module, spec_of(X))
        torch.testing.assert_close(lowered(X), module(X).detach())
    assert "execute" not in backend.calls


class KeepsWhole(Switched):
    """Refuses ``sin``, and wants every ``add`` in one part with the ``mul`` that reads it."""

    def kept_whole(self, graph: Graph) -> list[list[Node]]:
        return [
            [value.node, node]
            for node in graph.nodes
            for value in node.operands
            if "mul" in node.call.name and "add" in value.node.call.name
        ]


class AcrossRefused(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = x + 1
        return a * torch.sin(a) + torch.relu(x)


def test_a_group_that_the_backend_keeps_whole_is_in_one_part_or_in_none() -> None:
    backend = KeepsWhole()
    with registered("whole", backend):
        lowered = to_backend("whole", AcrossRefused(), spec_of(X))
        names = [{n.call.name for n in p.graph.nodes} for p in lowered._methods["forward"].parts.values()]
        assert any({"aten.add.Tensor", "aten.mul.Tensor"} <= found for found in names)
        backend.refuses = lambda node: "sin" in node.call.name
        lowered = to_backend("whole", AcrossRefused(), spec_of(X))
        torch.testing.assert_close(lowered(X), AcrossRefused()(X))
        text = lowered.explain()
        assert "its group would be in several parts" in text
        assert "aten.mul.Tensor" in text
        assert lowered._methods["forward"].parts  # relu, and the last sum, which is in no group
