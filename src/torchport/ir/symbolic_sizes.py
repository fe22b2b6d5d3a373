"""Graphs that differ in sizes only: what they have in common, and the one graph that stands for all of them.

Two traces of one program with another batch size have the same operators, the same operands and the same ranks; only
integers differ: sizes of shapes, and arguments that follow from sizes. :func:`skeleton` tells the two apart.
:func:`with_symbols` makes the graph in which integers that differ are symbols: a size of a shape has the symbol's name,
and an argument is a number, an input of the graph like every other number.

Sizes 0 and 1 stay in the skeleton: they decide how shapes broadcast, and which strides count. So does the order of the
dimensions, from which strides follow. Of the arguments, those may vary that the operator's schema declares to be
symbolic integers (``SymInt``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from torch._ops import OpOverload

from torchport.ir.call import Call, Op, number
from torchport.ir.graph import Graph
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape


def skeleton(graph: Graph) -> tuple[tuple[Any, ...], list[int]]:
    """What graphs that differ in sizes only have in common, and the integers in which they differ, in order."""
    sizes: list[int] = []
    position: dict[int, int] = {}
    parts: list[Any] = []
    for i, node in enumerate(graph.nodes):
        position[id(node)] = i
        call = node.call
        parts.append((call.op, *[(position[id(v.node)], v.index) for v in node.operands]))
        parts.append(tuple([_shape_part(s, sizes) for s in (*call.inputs, *call.outputs)]))
        parts.append(tuple([_argument_part(x, varies, sizes) for x, varies in _arguments(call)]))
    parts.append(tuple([(position[id(v.node)], v.index) for v in graph.results]))
    return tuple(parts), sizes


def with_symbols(graph: Graph, symbols: Sequence[str | None]) -> tuple[Graph, list[list[int]]]:
    """The graph with symbols for some of the integers that :func:`skeleton` lists.

    Args:
        graph: a graph of concrete sizes; they stay in the shapes as hints.
        symbols: for each integer, the name of its symbol; ``None`` for one that stays as it is.

    Returns:
        The graph, of nodes of its own, and for each node the positions (in ``symbols``) of the integers that it takes
        as numbers now, after those that it took before.
    """
    at = iter(range(len(symbols)))
    own: dict[int, Node] = {}
    added: list[list[int]] = []
    for node in graph.nodes:
        call = node.call
        inputs = tuple(_symbolic_shape(s, symbols, at) for s in call.inputs)
        outputs = tuple(_symbolic_shape(s, symbols, at) for s in call.outputs)
        numbers = list(node.numbers)
        positions: list[int] = []
        arguments = [_symbolic_argument(x, varies, symbols, at, numbers, positions) for x, varies in _arguments(call)]
        if inputs != call.inputs or outputs != call.outputs or positions:
            count = len(call.args)
            names = [name for name, _ in call.kwargs]
            keywords = tuple(zip(names, arguments[count:], strict=True))
            call = Call(call.op, tuple(arguments[:count]), keywords, inputs, outputs)  # type: ignore[arg-type]
        operands = tuple(Value(own[id(v.node)], v.index) for v in node.operands)
        own[id(node)] = Node(call, operands, tuple(numbers), node.location, node.data)
        added.append(positions)
    return Graph(own.values(), [Value(own[id(v.node)], v.index) for v in graph.results]), added


_COUNTS = frozenset({"aten::arange"})
"""Operators whose numbers say how many elements there are, although their schema takes any numbers."""


@lru_cache(maxsize=4096)
def _symbolic_integers(op: Op) -> tuple[frozenset[int], frozenset[str]]:
    """The positions and the names of the arguments that the schema declares to be symbolic integers."""
    if not isinstance(op, OpOverload):
        return frozenset(), frozenset()
    counts = op._schema.name in _COUNTS
    found = [(i, a.name) for i, a in enumerate(op._schema.arguments) if counts or _is_symbolic_integer(a.real_type)]
    return frozenset(i for i, _ in found), frozenset(name for _, name in found)


def _is_symbolic_integer(type_: Any) -> bool:
    while type_.kind() in ("OptionalType", "ListType"):
        type_ = type_.getElementType()
    return bool(type_.kind() == "SymIntType")


def _arguments(call: Call) -> Iterator[tuple[Any, bool]]:
    """The arguments, positional ones first, each with whether its integers may vary."""
    positions, names = _symbolic_integers(call.op)
    for i, value in enumerate(call.args):
        yield value, i in positions
    for name, value in call.kwargs:
        yield value, name in names


def _shape_part(shape: Shape | None, sizes: list[int]) -> Any:
    if shape is None:
        return None
    sizes += [n for n in shape.sizes if n > 1]
    fixed = tuple([n if n <= 1 else -1 for n in shape.sizes])
    # Strides follow from the sizes where elements are dense; elsewhere (a slice, an expansion) nobody counts on them.
    order = shape.dense_order or tuple([s if s <= 1 else -1 for s in shape.strides])
    return shape.dtype, fixed, shape.dense_order is None, order, shape.symbolic


def _symbolic_shape(shape: Shape | None, symbols: Sequence[str | None], at: Iterator[int]) -> Shape | None:
    if shape is None:
        return None
    flags = tuple(
        flag if n <= 1 else symbols[next(at)] or flag for n, flag in zip(shape.sizes, shape.symbolic, strict=True)
    )
    return shape if flags == shape.symbolic else Shape(shape.dtype, shape.sizes, shape.strides, flags)


def _argument_part(value: Any, varies: bool, sizes: list[int]) -> Any:
    if type(value) is tuple:
        return tuple([_argument_part(x, varies, sizes) for x in value])
    if varies and type(value) is int:
        sizes.append(value)
        return int
    # Equal floats may be different arguments (0.0 and -0.0), and a NaN equals nothing.
    return type(value), repr(value) if type(value) in (float, complex) else value


def _symbolic_argument(
    value: Any,
    varies: bool,
    symbols: Sequence[str | None],
    at: Iterator[int],
    numbers: list[Any],
    positions: list[int],
) -> Any:
    if type(value) is tuple:
        return tuple([_symbolic_argument(x, varies, symbols, at, numbers, positions) for x in value])
    if not varies or type(value) is not int:
        return value
    position = next(at)
    if symbols[position] is None:
        return value
    numbers.append(value)
    positions.append(position)
    return number(len(numbers) - 1, int)
