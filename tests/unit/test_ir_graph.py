import sys

import pytest
import torch

from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, number, operand
from torchport.ir.graph import Graph
from torchport.ir.location import SourceLocation, TextLocation
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape
from torchport.ir.text import parse_graph, print_graph

TEXT = """graph(%0: f32[3], %1: f32[3], $0: float = 0.5) {
  %2: f32[3] = aten.neg.default(%0)
  %3: f32[3] = aten.rand_like.default(%1)
  %4: f32[3] = aten.mul.Tensor(%2, $0)
  %5: f32[3] = aten.exp.default(%2)
  return %5
}
"""


class Data:
    def __init__(self, dtype, sizes, strides=None):
        self.shape = Shape(dtype, sizes, strides)


def test_dead_nodes_go_and_random_ones_stay_with_what_they_read():
    kept = [n.call.name for n in parse_graph(TEXT).without_dead_nodes().nodes]
    expected = ["device_data", "device_data", "neg.default", "rand_like.default", "exp.default"]
    assert expected == [name.split(".", 1)[1] for name in kept]


def test_the_graph_of_results_has_what_they_need_operands_first():
    graph = Graph.of_results(parse_graph(TEXT).results)
    assert ["port.device_data", "aten.neg.default", "aten.exp.default"] == [n.call.name for n in graph.nodes]
    assert [] == graph.numbers
    assert 1 == len(graph.parameters)


def test_a_call_binds_operands_and_numbers_at_their_places():
    call = Call(torch.ops.aten.cat.default, ((operand(1), (operand(0), 7)), "x"), (("dim", number(0, int)),))
    assert ([["b", ["a", 7]], "x"], {"dim": 3}) == call.bind(["a", "b"], [3])


def test_random_operators_are_known():
    assert [False, True] == [
        Call(op).is_random for op in (torch.ops.aten.neg.default, torch.ops.aten.native_dropout.default)
    ]


def test_values_are_equal_when_node_and_index_are():
    node = parse_graph(TEXT).nodes[0]
    assert Value(node, 0) == Value(node, 0)
    assert {Value(node, 0)} != {Value(node, 1)}
    assert Value(node) != node


def test_an_output_that_is_no_tensor_has_no_shape():
    node = Node(Call(torch.ops.aten.dim.default, outputs=(None,)))
    with pytest.raises(ValueError, match=r"output 0 of aten\.dim\.default is no tensor"):
        _ = node.value().shape


@pytest.mark.parametrize("sizes", [(3, 4), (2, 3, 4), (5, 3, 4), (0, 3, 4)])
@pytest.mark.parametrize("tensor", [torch.empty(3, 4), torch.empty(4, 3).t(), torch.empty(3, 1), torch.empty(1)])
def test_expand_has_the_shape_that_torch_gives(tensor, sizes):
    leaf = IrBuilder().make_device_data(Data(tensor.dtype, tensor.shape, tensor.stride()))
    shape = IrBuilder().make_expand(leaf.value(), sizes).value().shape
    expected = tensor.expand(sizes)
    assert sizes == shape.sizes
    strides = [(e, s) for n, e, s in zip(sizes, expected.stride(), shape.strides, strict=True) if n > 1]
    assert all(e == s for e, s in strides)


def test_expand_refuses_sizes_that_do_not_broadcast():
    leaf = IrBuilder().make_device_data(Data(torch.float32, (3,)))
    with pytest.raises(ValueError, match=r"expand: f32\[3\] does not broadcast to \(4,\)"):
        IrBuilder().make_expand(leaf.value(), (4,))


def test_cast_changes_the_dtype_and_keeps_the_layout():
    leaf = IrBuilder().make_device_data(Data(torch.float32, (3, 4), (1, 3)))
    node = IrBuilder().make_cast(leaf.value(), torch.int64)
    assert Shape(torch.int64, (3, 4), (1, 3)) is node.value().shape
    assert "%1: i64[3, 4]{1, 3} = aten._to_copy.default(%0, dtype=i64)" in print_graph(Graph([leaf, node], []))


def test_a_source_location_is_the_users_line():
    frame = sys._getframe()
    location, line = SourceLocation(frame.f_code, frame.f_lasti, "loop 2"), frame.f_lineno
    assert (__file__, line) == (location.file, location.line)
    assert "test_a_source_location_is_the_users_line" == location.function
    assert f"{__file__}:{line} (loop 2)" == str(location)
    assert f"SourceLocation({location})" == repr(location)
    assert "TextLocation('a.py:3')" == repr(TextLocation("a.py:3"))
