"""What graphs of different sizes have in common, and the graph with symbols that stands for them."""

from __future__ import annotations

import pytest
import torch

from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, operand
from torchport.ir.graph import Graph
from torchport.ir.inference import infer
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape
from torchport.ir.symbolic_sizes import skeleton, with_symbols
from torchport.ir.text import parse_graph, print_graph

aten = torch.ops.aten


class Data:
    def __init__(self, *sizes: int) -> None:
        self.shape = Shape(torch.float32, sizes)


def leaf(*sizes: int) -> Node:
    return IrBuilder().make_device_data(Data(*sizes))


def node(op: object, *args: object, numbers: tuple[float, ...] = ()) -> Node:
    """A node of an operator: values among the arguments become its operands."""
    operands = [a for a in args if isinstance(a, Value)]
    template = tuple(operand(operands.index(a)) if isinstance(a, Value) else a for a in args)
    inputs = tuple(v.shape for v in operands)
    call = Call(op, template, (), inputs, infer(op, template, {}, inputs, list(numbers)))
    return Node(call, tuple(operands), numbers)


def reshaped(rows: int, columns: int, dim: int = 0) -> Graph:
    x = leaf(rows, columns)
    flat = node(aten.view.default, x.value(), (rows * columns,))
    total = node(aten.sum.dim_IntList, x.value(), (dim,))
    return Graph([x, flat, total], [flat.value(), total.value()])


def symbols_of(a: Graph, b: Graph) -> list[str | None]:
    (one, first), (other, second) = skeleton(a), skeleton(b)
    assert one == other
    names: dict[tuple[int, int], str] = {}
    return [None if m == n else names.setdefault((m, n), f"s{len(names)}") for m, n in zip(first, second, strict=True)]


def test_graphs_that_differ_in_sizes_have_one_skeleton() -> None:
    assert skeleton(reshaped(3, 4))[0] == skeleton(reshaped(5, 7))[0]
    assert skeleton(reshaped(3, 4))[1] != skeleton(reshaped(5, 7))[1]


@pytest.mark.parametrize("other", [reshaped(1, 4), reshaped(0, 4), reshaped(3, 4, dim=1)])
def test_a_size_that_broadcasts_and_a_dimension_are_structure(other: Graph) -> None:
    assert skeleton(reshaped(3, 4))[0] != skeleton(other)[0]


def test_equal_integers_have_one_symbol_and_arguments_become_numbers() -> None:
    graph = reshaped(5, 4)
    made, added = with_symbols(graph, symbols_of(reshaped(3, 4), graph))
    assert print_graph(made) == (
        "graph(%0: f32[s0=5, 4], $0: int = 20) {\n"
        "  %1: f32[s1=20] = aten.view.default(%0, [$0])\n"
        "  %2: f32[4] = aten.sum.dim_IntList(%0, [0])\n"
        "  return %1, %2\n"
        "}\n"
    )
    assert [len(positions) for positions in added] == [0, 1, 0]
    assert [skeleton(graph)[1][p] for p in added[1]] == [20]


def test_a_graph_with_symbols_survives_its_text() -> None:
    graph = reshaped(5, 4)
    made, _ = with_symbols(graph, symbols_of(reshaped(3, 8), graph))
    again = parse_graph(print_graph(made))
    assert again.hash == made.hash
    assert again.nodes[0].outputs[0] is Shape(torch.float32, (5, 4), None, ("s0", "s1"))


def test_a_graph_without_symbols_stays_as_it_is() -> None:
    graph = reshaped(5, 4)
    made, added = with_symbols(graph, [None] * len(skeleton(graph)[1]))
    assert print_graph(made) == print_graph(graph)
    assert not any(added)


def test_own_numbers_of_a_node_come_before_those_of_sizes() -> None:
    from torchport.ir.call import number

    def narrowed(n: int) -> Graph:
        x = leaf(n)
        shape = Shape(torch.float32, (n,))
        call = Call(aten.add.Scalar, (operand(0), number(0, float)), (), (shape,), (shape,))
        added = Node(call, (x.value(),), (2.5,))
        viewed = node(aten.view.default, added.value(), (n,))
        return Graph([x, added, viewed], [viewed.value()])

    graph = narrowed(6)
    made, _ = with_symbols(graph, symbols_of(narrowed(4), graph))
    assert [n.numbers[i] for n, i in made.numbers] == [2.5, 6]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (Shape(torch.float32, (3, 4), (1, 3)), Shape(torch.float32, (5, 7), (1, 5)), True),
        (Shape(torch.float32, (3, 4), (1, 3)), Shape(torch.float32, (5, 7)), False),
        (Shape(torch.float32, (3, 4), (0, 0)), Shape(torch.float32, (5, 7), (0, 0)), True),
        (Shape(torch.float32, (3, 4), (0, 1)), Shape(torch.float32, (5, 7), (1, 0)), False),
        (Shape(torch.float32, (3, 4), (8, 2)), Shape(torch.float32, (5, 4), (8, 2)), True),
        (Shape(torch.float32, (3, 4)), Shape(torch.float32, (5, 4), (8, 2)), False),
        (Shape(torch.float32, (3, 4)), Shape(torch.float64, (3, 4)), False),
    ],
)
def test_the_order_of_dimensions_is_structure_and_dense_strides_are_not(a: Shape, b: Shape, same: bool) -> None:
    def graph(shape: Shape) -> Graph:
        source = node(aten.relu.default, leaf(3, 4).value())
        view = Node(Call(aten.alias.default, (operand(0),), (), (source.outputs[0],), (shape,)), (source.value(),))
        return Graph([source.operands[0].node, source, view], [view.value()])

    assert (skeleton(graph(a))[0] == skeleton(graph(b))[0]) is same


def test_static_arguments_are_told_apart_by_their_bits() -> None:
    def scaled(exponent: float) -> Graph:
        x = leaf(3)
        shape = Shape(torch.float32, (3,))
        power = Node(Call(aten.pow.Tensor_Scalar, (operand(0), exponent), (), (shape,), (shape,)), (x.value(),))
        return Graph([x, power], [power.value()])

    assert skeleton(scaled(0.0))[0] != skeleton(scaled(-0.0))[0]
    assert skeleton(scaled(float("nan")))[0] == skeleton(scaled(float("nan")))[0]


def test_a_dense_shape_takes_other_sizes_in_its_order() -> None:
    shape = Shape(torch.float32, (2, 3, 4, 5), (60, 1, 15, 3))
    assert shape.dense_order == (0, 2, 3, 1)
    assert (
        shape.with_sizes((7, 3, 2, 2)).strides == torch.empty(7, 3, 2, 2).to(memory_format=torch.channels_last).stride()
    )
    with pytest.raises(ValueError, match="no dense layout"):
        Shape(torch.float32, (3, 4), (8, 2)).with_sizes((3, 5))


def test_torch_tells_symbolic_integers_from_others() -> None:
    """What the arguments that may vary are known by."""
    kinds = {a.name: a.real_type for a in aten.slice.Tensor._schema.arguments}
    assert kinds["dim"].kind() == "IntType"
    assert kinds["start"].getElementType().kind() == "SymIntType"
    assert aten.view.default._schema.arguments[1].real_type.getElementType().kind() == "SymIntType"
