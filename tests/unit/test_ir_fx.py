import operator
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, number, operand
from torchport.ir.fx import from_fx, to_fx
from torchport.ir.graph import Graph
from torchport.ir.location import SourceLocation
from torchport.ir.node import Node
from torchport.ir.shape import Shape
from torchport.ir.structure import output_structure
from torchport.ir.text import parse_graph, print_graph

aten = torch.ops.aten

EXAMPLE = """graph(%0: f32[3, 4], %1: f32[4, 5]{1, 4}, $0: float = 0.5, $1: int = 1) {
  %2: f32[3, 5] = aten.mm.default(%0, %1)  # model.py:12
  %3: f32[3, 5] = aten.mul.Tensor(%2, $0)
  %4: f32[3, 5] = aten.add.Tensor(%3, %2, alpha=$1)  # a note without a line
  %5: f32[3], %6: i64[3] = aten.max.dim(%4, 1)
  return %5, %6
}
"""


def test_a_module_takes_parameters_then_numbers_and_returns_a_tuple():
    module = to_fx(parse_graph(EXAMPLE))
    assert ["p0", "p1", "n0", "n1"] == [n.name for n in module.graph.nodes if n.op == "placeholder"]
    a, b = torch.randn(3, 4), torch.randn(5, 4).t()
    expected = (a @ b * 0.25 + 2 * (a @ b)).max(1)
    values, indices = module(a, b, 0.25, 2)
    torch.testing.assert_close(expected.values, values)
    assert torch.equal(expected.indices, indices)
    assert EXAMPLE == print_graph(from_fx(module))


def test_nodes_carry_meta_tensors_and_locations():
    mm, mul, add, pair, *_ = [n for n in to_fx(parse_graph(EXAMPLE)).graph.nodes if n.op == "call_function"]
    assert ("meta", torch.float32, (3, 5)) == (mm.meta["val"].device.type, mm.meta["val"].dtype, mm.meta["val"].shape)
    assert [torch.float32, torch.int64] == [t.dtype for t in pair.meta["val"]]
    assert 'File "model.py", line 12, in <unknown>' in mm.stack_trace
    assert mul.stack_trace is None
    assert (None, "a note without a line") == (add.stack_trace, add.meta["location"])


def test_the_printed_module_shows_the_users_line():
    frame = sys._getframe()
    location = SourceLocation(frame.f_code, frame.f_lasti)
    node = IrBuilder().make_scalar(1.0, torch.float32, location)
    module = to_fx(Graph([node], [node.value()]))
    printed = module.print_readable(print_output=False)
    assert f"test_ir_fx.py:{location.line} in test_the_printed_module_shows_the_users_line" in printed
    assert "location = SourceLocation(frame.f_code, frame.f_lasti)" in printed
    assert str(location) == str(from_fx(module).nodes[0].location)


def test_scalars_become_scalar_tensor_and_lists_vanish():
    graph = parse_graph("""graph(%0: f32[3], $0: int = 2) {
      %1: f64[] = port.scalar($0)
      %2: f32[3], %3: f64[] = port.tensor_list([%0, %1])
      %4: f32[3] = aten.mul.Tensor(%2, %3)
      return %4, %3, %0
    }""")
    module = to_fx(graph)
    targets = [n.target for n in module.graph.nodes if n.op == "call_function"]
    assert [aten.scalar_tensor.default, aten.mul.Tensor] == targets
    x = torch.randn(3)
    product, scalar, same = module(x, 3)
    assert torch.equal(x * 3, product)
    assert (torch.float64, 3) == (scalar.dtype, scalar.item())
    assert same is x
    assert "%1: f64[] = port.scalar($0)" in print_graph(from_fx(module))


def test_views_and_strided_reads_go_by_value_whatever_the_strides_are():
    text = """graph(%0: f32[2, 3]) {
  %1: f32[3, 2] = aten.permute.default(%0, [1, 0])
  %2: f32[6] = aten.view.default(%1, [6])
  %3: f32[4] = aten.slice.Tensor(%2, 0, 2, 6)
  %4: f32[2] = aten.as_strided.default(%3, [2], [2], 0)
  %5: f32[2, 2] = aten.as_strided.default(%1, [2, 2], [3, 1], 1)
  return %2, %4, %5
}
"""
    x = torch.arange(6.0).view(2, 3)
    flat, strided, transposed = to_fx(parse_graph(text))(x)
    assert [0, 3, 1, 4, 2, 5] == flat.tolist()
    assert [1, 2] == strided.tolist()
    assert [[3, 1], [2, 5]] == transposed.tolist()
    column_major = text.replace("%1: f32[3, 2]", "%1: f32[3, 2]{1, 3}")
    assert [[1, 2], [4, 5]] == to_fx(parse_graph(column_major))(x)[2].tolist()
    without = "".join(line for line in text.splitlines(True) if "as_strided" not in line).replace(", %4, %5", "")
    assert without == print_graph(from_fx(to_fx(parse_graph(without))))


def call(op, args, outputs, kwargs=()):
    return Call(op, args, kwargs, (), (Shape(torch.float32, ()),) * outputs)


@pytest.fixture(scope="module")
def library():
    made = torch.library.Library("torchport_test_fx", "DEF")
    made.define("one_and_list(Tensor x) -> (Tensor, Tensor[])")
    made.define("two_lists(Tensor[] a, Tensor[] b) -> (Tensor[] a_out, Tensor[] b_out)")
    made.define("unnamed_lists(Tensor a) -> (Tensor[], Tensor[])")
    made.impl("one_and_list", lambda x: (x + 1, [x + 2, x + 3, x + 4]), "CPU")
    made.impl("two_lists", lambda a, b: ([x + 1 for x in a], [x + 2 for x in b]), "CPU")
    return made


@pytest.mark.parametrize(
    ("expected", "made"),
    [
        ((), call(aten._assert_async.default, (), 0)),
        ((None,), call(aten.neg.default, (), 1)),
        ((None, None), call(aten.max.dim, (), 2)),
        ((3,), call(aten.split.Tensor, (), 3)),
        ((0,), call(aten._foreach_neg.default, (), 0)),
        ((2, 2, 2, 2, 0), call(aten._fused_adam.default, (((operand(0), operand(1)),) * 4 + ((),)), 8)),
    ],
    ids=str,
)
def test_flat_outputs_are_grouped_as_the_operator_returns_them(expected, made):
    assert expected == output_structure(made)


def test_lists_whose_lengths_nothing_tells_are_refused(library):
    made = call(torch.ops.torchport_test_fx.unnamed_lists.default, (operand(0),), 3)
    with pytest.raises(ValueError, match=r"unnamed_lists.default\(%0\) has 3 outputs, which do not fit"):
        output_structure(made)


def test_lists_inside_tuples_are_read_with_two_getitems(library):
    text = """graph(%0: f32[], %1: f32[], %2: f32[]) {
  %3: f32[], %4: f32[], %5: f32[], %6: f32[] = torchport_test_fx.one_and_list.default(%0)
  %7: f32[], %8: f32[], %9: f32[] = torchport_test_fx.two_lists.default([%1], [%2, %0])
  return %3, %6, %4, %7, %9
}
"""
    module = to_fx(parse_graph(text))
    assert [1, 4, 2, 11, 2] == [t.item() for t in module(torch.tensor(0.0), torch.tensor(10.0), torch.tensor(20.0))]
    assert text == print_graph(from_fx(module))


def test_outputs_that_are_no_tensors_stay_none():
    x = torch.randn(2, 3)
    module = make_fx(
        lambda g, x, m, r: aten.native_layer_norm_backward(g, x, [3], m, r, None, None, [True, False, False])[0]
    )(x, x, torch.zeros(2, 1), torch.ones(2, 1))
    graph = from_fx(module)
    assert (Shape(torch.float32, (2, 3)), None, None) == graph.nodes[-1].outputs
    assert print_graph(graph) == print_graph(from_fx(to_fx(graph)))
    again = to_fx(graph)(x, x, torch.zeros(2, 1), torch.ones(2, 1))[0]
    torch.testing.assert_close(module(x, x, torch.zeros(2, 1), torch.ones(2, 1)), again)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        top = self.linear(x).relu().topk(2)
        return top.values.to(torch.float64), {"where": top.indices, "parts": x.split([1, 3], dim=1)}


# torch.export copies its own tree specs, whose class it has deprecated.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_an_exported_module_with_a_dynamic_size():
    model, x = Model(), torch.randn(5, 4)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    graph = from_fx(program.run_decompositions().graph_module)
    text = print_graph(graph)
    assert "%2: f32[?5, 4]" in text
    assert "aten._to_copy.default" in text
    assert "device" not in text
    assert "test_ir_fx.py:" in text
    assert text == print_graph(from_fx(to_fx(graph)))
    outs = to_fx(graph)(model.linear.weight, model.linear.bias, x)
    for expected, out in zip(torch.utils._pytree.tree_leaves(model(x)), outs, strict=True):
        torch.testing.assert_close(expected, out)


def test_a_gradient_traced_by_make_fx():
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    gradient = torch.func.grad(lambda w, x: (x @ w).tanh().sum())
    graph = from_fx(make_fx(gradient)(w, x))
    assert [(4, 5), (3, 4)] == [p.outputs[0].sizes for p in graph.parameters]
    torch.testing.assert_close(gradient(w, x), to_fx(graph)(w, x)[0])


def test_a_number_that_two_calls_read_is_an_input_of_each():
    made = torch.fx.Graph()
    n, p = made.placeholder("n"), made.placeholder("p")
    n.meta["val"], p.meta["val"] = 0.5, torch.ones(2)
    first = made.call_function(aten.mul.Tensor, (p, n))
    second = made.call_function(aten.add.Tensor, (first, n), {"alpha": 2})
    first.meta["val"] = second.meta["val"] = torch.ones(2)
    made.output([second])
    text = print_graph(from_fx(torch.fx.GraphModule(torch.nn.Module(), made)))
    assert "graph(%0: f32[2], $0: float = 0.5, $1: float = 0.5) {" in text
    assert "aten.add.Tensor(%1, $1, alpha=2)" in text


def test_everything_that_cannot_be_taken_over_is_listed_at_once():
    made = torch.fx.Graph()
    bare = made.placeholder("bare")
    p = made.placeholder("p")
    p.meta["val"] = torch.ones(2)
    made.get_attr("constant")
    written = made.call_function(aten.add_.Tensor, (p, p))
    made.call_function(aten.neg.default, (written,))
    made.call_function(torch.add, (p, p))
    lost = made.call_function(aten.neg.default, (p,))
    size = made.call_function(aten.sym_size.int, (p, 0))
    size.meta["val"] = 2
    sized = made.call_function(aten.full.default, ([size], 1.0))
    sized.meta["val"] = torch.ones(2)
    sparse = made.call_function(aten.to_sparse.default, (p,))
    sparse.meta["val"] = torch.ones(2).to_sparse()
    odd = made.call_function(aten.neg.default, (p, range(3)))
    for node in (written, lost, odd):
        node.meta["stack_trace"] = 'File "model.py", line 7, in f\n    x'
    del lost.meta["stack_trace"]
    odd.meta["val"] = torch.ones(2)
    made.output((p, None))
    module = torch.fx.GraphModule({"constant": torch.ones(2)}, made)
    with pytest.raises(ValueError, match=r"^from_fx: 9 of 12 nodes cannot be taken over:\n") as raised:
        from_fx(module)
    message = str(raised.value)
    assert bare.name in message
    for reason in (
        'meta["val"] is None, neither a tensor nor a number',
        "get_attr is no call of an operator; lift what it reads to an input",
        "at model.py:7: the operator writes to its input",
        "the target is no operator overload",
        'there is no meta["val"]; propagate fake tensors through the module',
        "the argument sym_size_int is no tensor, and known only when it runs",
        "a tensor of layout torch.sparse_coo has no strides",
        "the argument range(0, 3) is no static value",
        "an output is no tensor; return tensors only",
        "run_decompositions()",
    ):
        assert reason in message


def test_a_size_that_depends_on_data_is_refused_with_the_users_line():
    class Nonzero(torch.nn.Module):
        def forward(self, x):
            return x.nonzero()

    program = torch.export.export(Nonzero(), (torch.ones(3),))
    with pytest.raises(ValueError, match=r"test_ir_fx.py:\d+: the size u0 is not known before it runs"):
        from_fx(program.graph_module)


def test_a_long_chain_becomes_an_fx_module_and_comes_back():
    shape = Shape(torch.float32, (2,))
    leaf = IrBuilder().make_device_data(type("Data", (), {"shape": shape}))
    add = Call(aten.add.Tensor, (operand(0), number(0, float)), (), (shape,), (shape,))
    nodes = [leaf]
    for _ in range(5_000):
        nodes.append(Node(add, (nodes[-1].value(),), (1.0,)))
    graph = Graph(nodes, [nodes[-1].value()])
    module = to_fx(graph)
    assert graph.hash == from_fx(module).hash
    assert 5_000 == len(module.graph.find_nodes(op="call_function", target=aten.add.Tensor))
    assert not module.graph.find_nodes(op="call_function", target=operator.getitem)
