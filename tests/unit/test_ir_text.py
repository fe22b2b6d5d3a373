import math
import sys
import textwrap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchport.errors import IRSyntaxError
from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, number, operand
from torchport.ir.graph import Graph
from torchport.ir.location import SourceLocation, TextLocation
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape
from torchport.ir.text import parse_graph, print_graph

aten = torch.ops.aten
F3 = Shape(torch.float32, (3,))


class Data:
    def __init__(self, shape):
        self.shape = shape


def parameter(shape=F3):
    return IrBuilder().make_device_data(Data(shape))


def neg(value, location=None):
    return Node(Call(aten.neg.default, (operand(0),), (), (value.shape,), (value.shape,)), (value,), (), location)


def text_of(source):
    return textwrap.dedent(source).lstrip("\n")


EXAMPLE = text_of("""
    graph(%0: f32[3, 4], %1: f32[4, 5]{1, 4}, $0: float = 0.5, $1: int = 1) {
      %2: f32[3, 5] = aten.mm.default(%0, %1)  # model.py:12
      %3: f32[3, 5] = aten.mul.Tensor(%2, $0)
      %4: f32[3, 5] = aten.add.Tensor(%3, %2, alpha=$1)
      %5: f32[3], %6: i64[3] = aten.max.dim(%4, 1)
      return %5, %6
    }
""")


def assert_exact(graph):
    text = print_graph(graph)
    again = parse_graph(text)
    assert text == print_graph(again)
    assert graph.hash == again.hash
    assert [n.call.digest for n in graph.nodes] == [n.call.digest for n in again.nodes]
    assert [str(n.location) for n in graph.nodes] == [str(n.location) for n in again.nodes]
    assert [repr(n.numbers) for n in graph.nodes] == [repr(n.numbers) for n in again.nodes]
    return text


def test_the_example_of_the_documentation_reads_and_prints_the_same():
    graph = parse_graph(EXAMPLE)
    assert EXAMPLE == print_graph(graph) == str(graph)
    assert [Shape(torch.float32, (3, 4)), Shape(torch.float32, (4, 5), (1, 4))] == [
        p.outputs[0] for p in graph.parameters
    ]
    assert [0.5, 1] == [node.numbers[i] for node, i in graph.numbers]
    mm = graph.nodes[2]
    assert aten.mm.default is mm.call.op
    assert "model.py:12" == str(mm.location)
    assert (Value(graph.nodes[0]), Value(graph.nodes[1])) == mm.operands
    assert Value(graph.nodes[-1], 1) == graph.results[1]


def test_a_parsed_call_is_that_of_a_traced_one():
    call = Call(aten.add.Tensor, (operand(0), operand(1)), (("alpha", number(0, int)),), (F3, F3), (F3,))
    text = "graph(%0: f32[3], $0: int = 2) {\n  %1: f32[3] = aten.add.Tensor(%0, %0, alpha=$0)\n  return %1\n}\n"
    parsed = parse_graph(text).nodes[1].call
    assert (call.digest, repr(call), call.inputs, call.outputs) == (
        parsed.digest,
        repr(parsed),
        parsed.inputs,
        parsed.outputs,
    )


def test_a_graph_of_nothing():
    assert "graph() {\n  return\n}\n" == assert_exact(Graph([], []))


def test_a_parameter_keeps_its_place_among_the_nodes():
    first = parameter()
    negated = neg(first.value())
    second = parameter()
    both = Call(aten.mul.Tensor, (operand(0), operand(1)), (), (F3, F3), (F3,))
    product = Node(both, (negated.value(), second.value()))
    text = assert_exact(Graph([first, negated, second, product], [product.value()]))
    assert "graph(%0: f32[3], %2: f32[3]) {" in text
    assert_exact(Graph([first, second, negated, product], [product.value()]))
    assert_exact(Graph([first, negated, product_free := parameter()], [negated.value(), product_free.value()]))


def test_a_parameter_is_placed_before_its_reader_whatever_its_number():
    text = "graph(%7: f32[3], %9: f32[3]) {\n  %1: f32[3] = aten.mul.Tensor(%9, %7)\n  return %1\n}"
    graph = parse_graph(text)
    assert ["port.device_data", "port.device_data", "aten.mul.Tensor"] == [n.call.name for n in graph.nodes]
    assert "(%1, %0)" in assert_exact(graph)


def test_parameters_with_locations_stand_on_lines_of_their_own():
    node = parameter()
    node.location = TextLocation("a.py:1")
    other = parameter()
    scalar = IrBuilder().make_scalar(2.5, torch.float32)
    text = assert_exact(Graph([node, other, scalar], [scalar.value()]))
    assert text.startswith("graph(\n  %0: f32[3],  # a.py:1\n  %1: f32[3],\n  $0: float = 2.5,\n) {\n")


def test_outputs_that_are_no_tensors_print_as_underscores():
    shapes = (None, F3, None)
    call = Call(aten.native_layer_norm_backward.default, (operand(0),), (), (F3,), shapes)
    node = Node(call, ((leaf := parameter()).value(),))
    text = assert_exact(Graph([leaf, node, last := neg(node.value(1))], [last.value()]))
    assert "  _, %2: f32[3], _ = aten.native_layer_norm_backward.default(%0)\n  %4: f32[3] = " in text


def test_operators_without_results_and_parameters_between_them():
    nothing = Call(aten._assert_async.default, (operand(0),), (), (F3,), ())
    no_tensor = Call(aten.dim.default, (operand(0),), (), (F3,), (None,))
    a, b = parameter(), parameter()
    nodes = [a, Node(nothing, (a.value(),)), b, Node(no_tensor, (a.value(),)), Node(nothing, (b.value(),)), parameter()]
    text = assert_exact(Graph(nodes, []))
    assert "  aten._assert_async.default(%0)\n  _ = aten.dim.default(%0)\n" in text
    assert [n.call.name for n in nodes] == [n.call.name for n in parse_graph(text).nodes]


CONSTANTS = [
    (None, "None"),
    (True, "True"),
    (-3, "-3"),
    (2**63 - 1, "9223372036854775807"),
    (0.1, "0.1"),
    (-0.0, "-0.0"),
    (1e-45, "1e-45"),
    (1e22, "1e+22"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
    (math.nan, "nan"),
    (complex(-0.0, -math.inf), "complex(-0.0, -inf)"),
    ('a "b"\n\\ # é', '"a \\"b\\"\\n\\\\ # \\u00e9"'),
    (torch.float64, "f64"),
    (torch.float8_e5m2, "float8_e5m2"),
    (torch.strided, "torch.strided"),
    (torch.channels_last, "torch.channels_last"),
    (torch.device("cuda", 1), 'device("cuda:1")'),
    ((), "[]"),
    ((1, (2.0, ()), "x"), '[1, [2.0, []], "x"]'),
]


@pytest.mark.parametrize(("value", "text"), CONSTANTS, ids=[t for _, t in CONSTANTS])
def test_constants_keep_type_and_value(value, text):
    node = Node(Call(aten.full.default, (value,), (("x", value),), (), (F3,)))
    graph = Graph([node], [node.value()])
    assert f"aten.full.default({text}, x={text})" in assert_exact(graph)
    again = parse_graph(print_graph(graph)).nodes[0].call.args[0]
    assert type(value) is type(again)
    assert repr(value) == repr(again)


def test_a_constant_without_text_form_prints_and_is_refused():
    node = Node(Call(aten.full.default, (range(3),), (), (), (F3,)))
    text = print_graph(Graph([node], [node.value()]))
    assert "aten.full.default(<range range(0, 3)>)" in text
    with pytest.raises(IRSyntaxError, match=r"line 2, column 34: a constant in <…> has no text form"):
        parse_graph(text)


@pytest.mark.parametrize("value", [True, 7, -0.0, math.nan, -math.inf, 1e300, complex(1, -0.0)], ids=repr)
def test_numbers_keep_type_and_value(value):
    node = IrBuilder().make_scalar(value, torch.float64)
    assert f"$0: {type(value).__name__} = " in assert_exact(Graph([node], [node.value()]))


def test_a_number_is_printed_as_its_static_type_says():
    node = Node(Call(aten.full.default, ((), number(0, float)), (), (), (F3,)), numbers=(2,))
    assert "graph($0: float = 2.0)" in print_graph(Graph([node], [node.value()]))


def test_a_number_may_stand_twice_in_one_call_and_in_any_order():
    call = Call(aten.clamp.default, (number(1, float), (number(0, int), number(1, float))), (), (), (F3,))
    graph = Graph([Node(call, numbers=(3, 0.5)), second := Node(call, numbers=(4, 1.5))], [second.value()])
    text = assert_exact(graph)
    assert "clamp.default($1, [$0, $1])" in text
    assert "clamp.default($3, [$2, $3])" in text


def test_special_operators():
    builder = IrBuilder()
    leaf, scalar = parameter(), builder.make_scalar(2, torch.int32)
    listed = builder.make_tensor_list([leaf.value(), scalar.value()])
    text = assert_exact(Graph([leaf, scalar, listed, empty := builder.make_tensor_list([])], [listed.value(1)]))
    assert "  %1: i32[] = port.scalar($0)\n  %2: f32[3], %3: i32[] = port.tensor_list([%0, %1])\n" in text
    assert "  port.tensor_list([])\n" in text
    assert () == empty.outputs


def test_symbolic_sizes_and_strides():
    shape = Shape(torch.float16, (3, 4), (1, 3), (True, False))
    text = assert_exact(Graph([leaf := parameter(shape)], [leaf.value()]))
    assert "%0: f16[?3, 4]{1, 3}" in text
    assert shape is parse_graph(text).nodes[0].outputs[0]


def test_a_call_that_reads_one_operand_twice_says_so():
    call = Call(aten.mul.Tensor, (operand(0), operand(0)), (), (F3,), (F3,))
    swapped = Call(aten.mul.Tensor, (operand(1), operand(0)), (), (F3, F3), (F3,))
    leaf, other = parameter(), parameter()
    nodes = [leaf, other, Node(call, (leaf.value(),)), Node(swapped, (leaf.value(), other.value()))]
    text = assert_exact(Graph(nodes, [nodes[3].value()]))
    assert "mul.Tensor(%0@0, %0@0)" in text
    assert "mul.Tensor(%1@1, %0@0)" in text


def test_a_call_that_takes_its_operand_to_be_of_another_shape_says_so():
    column_major = parameter(Shape(torch.float32, (3, 4), (1, 3)))
    assumed = Shape(torch.float32, (3, 4))
    call = Call(aten.view.default, (operand(0), (12,)), (), (assumed,), (Shape(torch.float32, (12,)),))
    node = Node(call, (column_major.value(),))
    text = assert_exact(Graph([column_major, node], [node.value()]))
    assert "aten.view.default(%0 as f32[3, 4], [12])" in text
    assert (assumed,) == parse_graph(text).nodes[1].call.inputs


@pytest.mark.parametrize(
    "location", ["a.py:1", "C:\\new\\t.py:3 (in # f)", "", " x ", '"x"', "two\nlines", "\ud800", "é.py:2", "tab\there"]
)
def test_locations_are_kept_whatever_they_hold(location):
    leaf = parameter()
    text = assert_exact(Graph([leaf, n := neg(leaf.value(), TextLocation(location))], [n.value()]))
    assert location == str(parse_graph(text).nodes[1].location)


def test_a_traced_location_prints_the_users_line():
    frame = sys._getframe()
    location, line = SourceLocation(frame.f_code, frame.f_lasti), frame.f_lineno
    leaf = parameter()
    text = assert_exact(Graph([leaf, n := neg(leaf.value(), location)], [n.value()]))
    assert f"test_ir_text.py:{line}" in text


def test_comments_blank_lines_and_windows_line_ends_are_skipped():
    text = EXAMPLE.replace("return", "# a remark\n\n  return").replace("\n", "\r\n")
    assert EXAMPLE == print_graph(parse_graph("# head\n\n" + text + "\n# tail"))


def test_printing_needs_operands_first():
    leaf = parameter()
    node = neg(leaf.value())
    with pytest.raises(ValueError, match="list nodes operands first"):
        print_graph(Graph([node, leaf], [node.value()]))


def one(call, head="%0: f32[3]"):
    return f"graph({head}) {{\n  {call}\n  return\n}}\n"


ERRORS = [
    ("", "line 1, column 1: expected 'graph', found the end of the line"),
    ("graph(%0: f32[3])", "line 1, column 18: expected '{', found the end of the line"),
    ("graph() {", "line 1, column 10: a graph ends with a line 'return …'"),
    ("graph() {\n}", "line 2, column 1: a graph ends with a line 'return …'"),
    ("graph() {\n  return\n", "expected '}', found the end of the line"),
    ("graph() {\n  return\n}\nx", "line 4, column 1: nothing may follow the graph"),
    ("graph(x) {", "line 1, column 7: expected an input"),
    ("graph(%0: f33[3]) {", "line 1, column 11: 'f33' is no dtype; did you mean 'f32'?"),
    ("graph(%0: f32[-1]) {", "a size is never negative"),
    ("graph(%0: f32[a]) {", "expected an integer"),
    ("graph(%0: f32[3]{1, 2}) {", "1 sizes and 2 strides; they must be as many"),
    ("graph(%1: f32[3], %0: f32[3]) {", "line 1, column 19: tensor inputs are numbered in ascending order"),
    ("graph($1: int = 1) {", "number inputs are numbered in order: expected $0"),
    ("graph($0: str = 1) {", "expected the type of a number: bool, int, float, complex"),
    ("graph($0: float = 1) {", "line 1, column 19: expected a value of type float, as in '$0: float = 0.0'"),
    ("graph($0: int = 1) {\n  return\n}", "line 2, column 3: no call takes the number input $0"),
    (one("%1: f32[3] = aten.negg.default(%0)"), "line 2, column 16: there is no operator 'aten.negg.default'; did"),
    (one("%1: f32[3] = nobody.knows.this(%0)"), "is its library imported?"),
    (one("%1: f32[3] = aten.neg(%0)"), "there is no operator 'aten.neg'; did you mean 'aten.neg.out'?"),
    (one("%1: f32[3] = port.device_data()"), "write them in its header"),
    (one("%1: f32[3] = 3(%0)"), "expected an operator, as 'aten.mm.default'"),
    (one("%1: f32[3] = aten.neg.default(%1)"), "line 2, column 33: %1 is read before it is defined"),
    (one("%0: f32[3] = aten.neg.default(%0)"), "line 2, column 3: %0 is defined twice"),
    (one("%1: f32[3], %1: f32[3] = aten.neg.default(%0)"), "%1 is defined twice"),
    (one("%1: f32[3], = aten.neg.default(%0)"), "expected another output"),
    (one("%1: f32[3] = aten.neg.default(%0"), "line 2, column 35: expected ',', found the end of the line"),
    (one("%1: f32[3] = aten.neg.default(%0) x"), "expected the end of the line, found 'x'"),
    (one("%1: f32[3] = aten.neg.default(x=1, x=2)"), "the argument 'x' is given twice"),
    (one("%1: f32[3] = aten.neg.default(x=1, %0)"), "positional arguments come before those with a name"),
    (one("%1: f32[3] = aten.neg.default($0)"), "$0 is no number input of this graph"),
    (one("%1: f32[3] = aten.neg.default($1)", "$0: int = 1, $1: int = 1"), "in order: $0 is the next"),
    (
        "graph($0: int = 1) {\n  %0: f32[] = port.scalar($0)\n  %1: f32[] = port.scalar($0)\n  return\n}",
        "line 3, column 27: $0 is taken by an earlier call",
    ),
    (one("%1: f32[3] = aten.neg.default(%0@1)"), "no argument is operand @0 of this call"),
    (one("%2: f32[3] = aten.neg.default(%0@0, %1@0)", "%0: f32[3], %1: f32[3]"), "operand @0 of this call is given as"),
    (one("%1: f32[3] = aten.neg.default(%0@99999999999)"), "there are not so many operands"),
    (one("%1: f32[3] = aten.neg.default(%0 as f3[3])"), "line 2, column 39: 'f3' is no dtype"),
    (one("%1: f32[3] = aten.neg.default(%0@0, %0@0 as f32[4])"), "operand @0 of this call is given as two values"),
    (one("%1: f32[3] = aten.neg.default(floot)"), "'floot' is no constant"),
    (one("%1: f32[3] = aten.neg.default(torch.stridet)"), "did you mean 'torch.strided'?"),
    (one('%1: f32[3] = aten.neg.default(device("gpu"))'), "Expected one of cpu, cuda"),
    (one('%1: f32[3] = aten.neg.default("a)'), "line 2, column 33: the string has no end"),
    (one('%1: f32[3] = aten.neg.default("\\q")'), "the string is not as JSON writes it"),
    (one('%1: f32[3] = aten.neg.default(%0)  # "a'), "the string is not as JSON writes it"),
    (one("%1: f32[3] = aten.neg.default(%0;)"), "line 2, column 35: unexpected character ';'"),
    (one(f"%1: f32[3] = aten.neg.default({'9' * 5000})"), "the integer is too long"),
    (one(f"%1: f32[3] = aten.neg.default({'[' * 5000})"), "lists are nested more than 32 deep"),
    (one("%1: f32[3] = aten.neg.default(complex(1.0))"), "expected ',', found ')'"),
    (one("%1: f32[3] = aten.neg.default(complex(x, 1.0))"), "expected a float"),
]


@pytest.mark.parametrize(("text", "message"), ERRORS, ids=[m for _, m in ERRORS])
def test_a_text_that_cannot_be_read_says_where_and_why(text, message):
    with pytest.raises(IRSyntaxError) as raised:
        parse_graph(text)
    assert message in str(raised.value)
    assert f"line {raised.value.line}, column {raised.value.column}: " in str(raised.value)


def test_an_error_shows_the_line_and_points_at_the_place():
    with pytest.raises(IRSyntaxError) as raised:
        parse_graph(EXAMPLE.replace("mm.default", "mm.defautl"))
    assert text_of("""
        line 2, column 19: there is no operator 'aten.mm.defautl'; did you mean 'aten.mm.default'?
            %2: f32[3, 5] = aten.mm.defautl(%0, %1)  # model.py:12
                            ^""") == str(raised.value)


def test_every_truncation_is_refused_with_a_syntax_error():
    complete = EXAMPLE.rstrip()
    for end in range(len(complete)):
        with pytest.raises(IRSyntaxError):
            parse_graph(complete[:end])


@settings(deadline=None)
@given(st.data())
def test_a_damaged_text_is_read_or_refused_with_a_syntax_error(data):
    text = list(EXAMPLE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        piece = data.draw(st.sampled_from([*'"(]{%$@?-9.#\n é_<', ""]))
        text[at : at + data.draw(st.integers(0, 2))] = piece
    try:
        graph = parse_graph("".join(text))
    except IRSyntaxError:
        return
    assert_exact(graph)
