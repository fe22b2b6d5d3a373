"""Random graphs: what the text and torch.fx give back is what went in."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, number, operand
from torchport.ir.fx import from_fx, to_fx
from torchport.ir.graph import Graph
from torchport.ir.location import TextLocation
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape
from torchport.ir.text import parse_graph, print_graph

aten = torch.ops.aten

LOCATIONS = (
    st.none() | st.text(max_size=12).map(TextLocation) | st.integers(1, 99).map(lambda n: TextLocation(f"a.py:{n}"))
)
CONSTANTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.complex_numbers()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            torch.float32,
            torch.bool,
            torch.uint16,
            torch.float8_e5m2,
            torch.strided,
            torch.sparse_coo,
            torch.preserve_format,
        ]
    )
    | st.sampled_from([torch.device("cpu"), torch.device("cuda", 3), torch.device("meta")]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
NUMBERS = st.booleans() | st.integers() | st.floats() | st.complex_numbers()
OPERATORS = st.sampled_from(
    [
        aten.mm.default,
        aten.max.dim,
        aten._to_copy.default,
        aten.rand.default,
        torch.ops.prims.convert_element_type.default,
    ]
)


@st.composite
def shapes(draw):
    sizes = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    strides = draw(st.none() | st.tuples(*[st.integers(0, 99)] * len(sizes)))
    return Shape(
        draw(st.sampled_from([torch.float32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])),
        sizes,
        strides,
        draw(st.tuples(*[st.booleans()] * len(sizes))),
    )


class Data:
    def __init__(self, shape):
        self.shape = shape


@st.composite
def any_graphs(draw):
    """Graphs of calls that need not make sense: every operand, number, constant and output that the form can hold."""
    nodes, values = [], []

    def argument(operands, numbers):
        kind = draw(st.sampled_from("ovnnc" if values else "nnc"))
        if kind in "ov":
            # Mostly an operand of its own, sometimes one that the call reads already.
            if operands and draw(st.integers(0, 4)) == 0:
                return operand(draw(st.integers(0, len(operands) - 1)))
            operands.append(draw(st.sampled_from(values)))
            return operand(len(operands) - 1)
        if kind == "n":
            numbers.append(draw(NUMBERS))
            return number(len(numbers) - 1, type(numbers[-1]))
        return draw(CONSTANTS)

    for _ in range(draw(st.integers(0, 8))):
        if draw(st.integers(0, 3)) == 0:
            node = IrBuilder().make_device_data(Data(draw(shapes())))
            node.location = draw(LOCATIONS)
        else:
            operands, numbers = [], []
            args = [argument(operands, numbers) for _ in range(draw(st.integers(0, 3)))]
            nested = tuple(argument(operands, numbers) for _ in range(draw(st.integers(0, 2))))
            kwargs = tuple((name, argument(operands, numbers)) for name in ("dtype", "x_y")[: draw(st.integers(0, 2))])
            outputs = tuple(draw(st.lists(st.none() | shapes(), max_size=3)))
            # Mostly the operands' own shapes.
            inputs = tuple(draw(shapes()) if draw(st.integers(0, 9)) == 0 else v.shape for v in operands)
            call = Call(draw(OPERATORS), (*args, nested), kwargs, inputs, outputs)
            node = Node(call, tuple(operands), tuple(numbers), draw(LOCATIONS))
        nodes.append(node)
        values += [Value(node, i) for i, shape in enumerate(node.outputs) if shape is not None]
    return Graph(nodes, draw(st.lists(st.sampled_from(values), max_size=3)) if values else [])


def assert_same(graph, again):
    assert graph.hash == again.hash
    assert [n.call.digest for n in graph.nodes] == [n.call.digest for n in again.nodes]
    assert [repr(n.numbers) for n in graph.nodes] == [repr(n.numbers) for n in again.nodes]
    assert [str(n.location) for n in graph.nodes] == [str(n.location) for n in again.nodes]
    assert [n.call.inputs for n in graph.nodes] == [n.call.inputs for n in again.nodes]


@settings(deadline=None)
@given(any_graphs())
def test_the_text_of_any_graph_gives_it_back(graph):
    text = print_graph(graph)
    again = parse_graph(text)
    assert_same(graph, again)
    assert text == print_graph(again)


class Tracer:
    """Builds graphs by running each call on cpu tensors, which keeps the expected value of everything."""

    def __init__(self):
        self.nodes, self.values = [], []  # values: (Value, tensor)

    def parameter(self, tensor):
        node = IrBuilder().make_device_data(Data(Shape(tensor.dtype, tensor.shape, tensor.stride())))
        self.nodes.append(node)
        self.values.append((node.value(), tensor))

    def scalar(self, value, dtype):
        node = IrBuilder().make_scalar(value, dtype)
        self.nodes.append(node)
        self.values.append((node.value(), torch.tensor(value, dtype=dtype)))

    def call(self, op, *args, location=None, **kwargs):
        operands, numbers = [], []

        def convert(x):
            if isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], Value):
                operands.append(x)
                return operand(len(operands) - 1)
            if isinstance(x, list):
                return tuple(map(convert, x))
            if isinstance(x, float):
                numbers.append(x)
                return number(len(numbers) - 1, float)
            return x

        args = tuple(map(convert, args))
        kwargs = tuple((k, convert(v)) for k, v in sorted(kwargs.items()))
        inputs = tuple(value.shape for value, _ in operands)
        positional, named = Call(op, args, kwargs, inputs).bind([t for _, t in operands], numbers)
        outs = flatten(op(*positional, **named))
        shapes = tuple(None if t is None else Shape(t.dtype, t.shape, t.stride()) for t in outs)
        call = Call(op, args, kwargs, inputs, shapes)
        node = Node(call, tuple(value for value, _ in operands), tuple(numbers), location)
        self.nodes.append(node)
        self.values += [(node.value(i), t) for i, t in enumerate(outs) if t is not None]


def flatten(outs):
    if isinstance(outs, list | tuple):
        return [t for out in outs for t in flatten(out)]
    return [outs if isinstance(outs, torch.Tensor) else None]


MAKERS = {
    "add": lambda t, a, b, x, f: t.call(aten.add.Tensor, a, b, alpha=x, location=f),
    "mul": lambda t, a, b, x, f: t.call(aten.mul.Tensor, a, x, location=f),
    "transposed": lambda t, a, b, x, f: t.call(aten.transpose.int, a, 0, 1, location=f),
    "mm": lambda t, a, b, x, f: t.call(aten.mm.default, a, b, location=f),
    "max": lambda t, a, b, x, f: t.call(aten.max.dim, a, 1, True, location=f),
    "cat": lambda t, a, b, x, f: t.call(aten.cat.default, [a, b, a], 1, location=f),
    "split": lambda t, a, b, x, f: t.call(aten.split_with_sizes.default, a, [1, 3], 1, location=f),
    "fused": lambda t, a, b, x, f: t.call(aten._foreach_add.List, [a, b], [b, a], location=f),
    "to": lambda t, a, b, x, f: t.call(aten._to_copy.default, a, dtype=torch.float64, location=f),
    "full": lambda t, a, b, x, f: t.call(aten.full.default, [4, 4], x, dtype=torch.float32, location=f),
    "clamp": lambda t, a, b, x, f: t.call(aten.clamp.default, a, None, x, location=f),
    "norm": lambda t, a, b, x, f: t.call(aten.native_layer_norm.default, a, [4], None, None, 1e-5, location=f),
    "rand": lambda t, a, b, x, f: t.call(aten.rand_like.default, a, location=f),
    "scalar": lambda t, a, b, x, f: t.scalar(x, torch.float32),
}


@st.composite
def traces(draw):
    torch.manual_seed(0)
    trace = Tracer()
    for transposed in draw(st.lists(st.booleans(), min_size=1, max_size=3)):
        trace.parameter(torch.randn(4, 4).t() if transposed else torch.randn(4, 4))
    for name in draw(st.lists(st.sampled_from(sorted(MAKERS)), max_size=8)):
        square = [v for v in trace.values if v[1].shape == (4, 4) and v[1].dtype is torch.float32]
        a, b = draw(st.sampled_from(square)), draw(st.sampled_from(square))
        MAKERS[name](trace, a, b, draw(st.floats(-2, 2)), draw(LOCATIONS))
    return trace, draw(st.lists(st.sampled_from(trace.values), min_size=1, max_size=4))


def evaluate(graph, tensors):
    """The results of a graph, node by node: what the interpreter of a text book would do."""
    values, left = {}, iter(tensors)
    for node in graph.nodes:
        if node.is_device_data:
            outs = [next(left)]
        elif str(node.op) == "port.scalar":
            outs = [torch.tensor(node.numbers[0], dtype=node.value().shape.dtype)]
        else:
            args, kwargs = node.call.bind([values[v] for v in node.operands], node.numbers)
            outs = flatten(node.op(*args, **kwargs))
        values.update((node.value(i), t) for i, t in enumerate(outs))
    return [values[v] for v in graph.results]


@settings(deadline=None, max_examples=60)
@given(traces())
def test_a_graph_computes_the_same_from_its_text_and_as_an_fx_module(drawn):
    trace, results = drawn
    graph = Graph(trace.nodes, [value for value, _ in results])
    tensors = [t for v, t in trace.values if v.node.is_device_data]
    parsed, module = parse_graph(print_graph(graph)), to_fx(graph)
    back = from_fx(module)
    assert_same(graph, parsed)
    assert_same(graph, back)
    assert print_graph(graph) == print_graph(back)
    numbers = [node.numbers[i] for node, i in graph.numbers]
    for outs in (evaluate(parsed, tensors), module(*tensors, *numbers), evaluate(back, tensors)):
        for (value, _), got in zip(results, outs, strict=True):
            assert value.shape is Shape(got.dtype, got.shape, got.stride())
    torch.manual_seed(1)
    expected = evaluate(graph, tensors)
    torch.manual_seed(1)
    assert_equal(expected, module(*tensors, *numbers))
    torch.manual_seed(1)
    assert_equal(expected, evaluate(parsed, tensors))


def assert_equal(expected, outs):
    for a, b in zip(expected, outs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_kind_of_call_of_the_table_goes_round(name):
    trace = Tracer()
    trace.parameter(torch.randn(4, 4))
    trace.parameter(torch.randn(4, 4).t())
    MAKERS[name](trace, trace.values[0], trace.values[1], 0.5, TextLocation("model.py:3"))
    graph = Graph(trace.nodes, [value for value, _ in trace.values[2:]])
    assert_same(graph, parse_graph(print_graph(graph)))
    assert_same(graph, from_fx(to_fx(graph)))
