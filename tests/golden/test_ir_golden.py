"""Texts of graphs, kept as files: a change of the form or of the lowering of torch's own modules shows as a diff.

``python tests/golden/test_ir_golden.py`` writes them anew.
"""

import warnings
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, number, operand
from torchport.ir.fx import from_fx
from torchport.ir.graph import Graph
from torchport.ir.location import TextLocation
from torchport.ir.node import Node
from torchport.ir.shape import Shape
from torchport.ir.text import parse_graph, print_graph

HERE = Path(__file__).parent
aten = torch.ops.aten


class Data:
    def __init__(self, dtype, *sizes, strides=None):
        self.shape = Shape(dtype, sizes, strides)


def without_locations(graph):
    """The same graph; lines of this file and of torch are none of the text's business."""
    for node in graph.nodes:
        node.location = None
    return graph


def special_operators():
    builder = IrBuilder()
    x = builder.make_device_data(Data(torch.float32, 2, 3, strides=(1, 2)))
    scalar = builder.make_scalar(0.5, torch.float32, TextLocation("model.py:3"))
    wide = builder.make_expand(scalar.value(), (2, 3), TextLocation("model.py:4"))
    cast = builder.make_cast(x.value(), torch.float64)
    listed = builder.make_tensor_list([wide.value(), cast.value()], TextLocation("model.py:5 (loop)"))
    return Graph([x, scalar, wide, cast, listed], [listed.value(0), listed.value(1)])


def constants():
    shape = Shape(torch.complex64, (2,))
    values = (None, True, -7, 0.1, -0.0, float("inf"), float("nan"), 1 + 2j, 'say "é"\n', (1, (2.5, ())))
    kwargs = (("dtype", torch.bfloat16), ("layout", torch.strided), ("memory_format", torch.channels_last))
    call = Call(aten.full.default, (values, number(0, complex), torch.device("cuda", 1)), kwargs, (), (shape,))
    node = Node(call, (), (complex(0.0, float("-inf")),), TextLocation("two\nlines"))
    return Graph([node], [node.value()])


def outputs_that_are_no_tensors():
    shape = Shape(torch.float32, (4,), None, (True,))
    x = IrBuilder().make_device_data(Data(torch.float32, 4))
    x.location = TextLocation("model.py:1")
    backward = Call(
        aten.native_layer_norm_backward.default, (operand(0), (4,)), (), (x.outputs[0],), (shape, None, None)
    )
    check = Call(aten._assert_async.msg, (operand(0), "positive"), (), (x.outputs[0],), ())
    late = IrBuilder().make_device_data(Data(torch.int64))
    square = Call(aten.mul.Tensor, (operand(0), operand(0)), (), (late.outputs[0],), (late.outputs[0],))
    nodes = [x, first := Node(backward, (x.value(),)), Node(check, (x.value(),)), late, Node(square, (late.value(),))]
    return Graph(nodes, [nodes[-1].value(), first.value()])


def training_step_of_a_classifier():
    def step(w, b, x, y):
        def loss(w, b):
            return torch.nn.functional.cross_entropy(torch.relu(x @ w + b), y)

        gradients = torch.func.grad(loss, argnums=(0, 1))(w, b)
        return [p - 0.1 * g for p, g in zip((w, b), gradients, strict=True)]

    args = torch.zeros(4, 3), torch.zeros(3), torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
    return without_locations(from_fx(make_fx(step)(*args)))


GRAPHS = [special_operators, constants, outputs_that_are_no_tensors, training_step_of_a_classifier]


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_a_graph_has_the_text_on_file(make):
    graph = make()
    expected = (HERE / f"{make.__name__}.txt").read_text(encoding="utf-8")
    assert expected == print_graph(graph)
    again = parse_graph(expected)
    assert expected == print_graph(again)
    assert graph.hash == again.hash


def test_every_file_has_its_graph():
    assert sorted(make.__name__ for make in GRAPHS) == sorted(path.stem for path in HERE.glob("*.txt"))


if __name__ == "__main__":
    warnings.simplefilter("error")
    for make in GRAPHS:
        (HERE / f"{make.__name__}.txt").write_text(print_graph(make()), encoding="utf-8")
