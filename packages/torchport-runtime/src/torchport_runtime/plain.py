"""Graphs without PyTorch: what a target makes of the text form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchport_runtime.text import grammar

PARTITION = "port.partition"
LEAF = "port.device_data"

# Short names of scalar types, as the text form has them.
DTYPES = (
    *("f16", "bf16", "f32", "f64", "c32", "c64", "c128", "b8"),
    *("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
)
_CONSTANTS = (
    *("torch.strided", "torch.sparse_coo", "torch.sparse_csr"),
    *("torch.contiguous_format", "torch.preserve_format", "torch.channels_last", "torch.channels_last_3d"),
)


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type, by its short name."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A layout, memory format or device, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Shape:
    """A scalar type and sizes; ``symbols`` names those that vary."""

    dtype: str
    sizes: tuple[int, ...]
    symbols: tuple[bool | str, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """The place of an operand in a call's arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class Number:
    """The place of a number in a call's arguments."""

    index: int
    type: type


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with its arguments."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape | None, ...]


@dataclass(eq=False, slots=True)
class Node:
    """One operation."""

    call: Call
    operands: tuple[Value, ...]
    numbers: tuple[Any, ...]
    location: str | None


@dataclass(frozen=True, slots=True)
class Value:
    """One result of a node."""

    node: Node
    index: int

    @property
    def shape(self) -> Shape:
        """Its shape."""
        shape = self.node.call.outputs[self.index]
        assert shape is not None
        return shape


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, operands before their users, and results."""

    nodes: list[Node]
    results: list[Value]

    @property
    def parameters(self) -> list[Node]:
        """The tensor inputs."""
        return [n for n in self.nodes if n.call.op == LEAF]

    @property
    def numbers(self) -> list[tuple[Node, int]]:
        """The number inputs."""
        return [(n, i) for n in self.nodes for i in range(len(n.numbers))]


def parse_graph(text: str) -> Graph:
    """The graph of a text.

    Raises:
        IRSyntaxError: the text is not of the form.
    """
    graph: Graph = grammar.parse_graph(text, _PlainMakers())
    return graph


class _PlainMakers:
    dtypes: Mapping[str, Any] = {name: DType(name) for name in DTYPES}
    constants: Mapping[str, Any] = {name: Constant(name) for name in _CONSTANTS}

    def device(self, name: str) -> Constant:
        return Constant(name)

    def shape(
        self, dtype: DType, sizes: tuple[int, ...], strides: tuple[int, ...] | None, symbolic: tuple[bool | str, ...]
    ) -> Shape:
        return Shape(dtype.name, sizes, symbolic)

    def operator(self, name: str) -> str | None:
        # Whether there is such an operator is known to who runs it.
        return name if name.count(".") >= 1 else None

    def operator_names(self) -> Sequence[str]:
        return ()

    def operand(self, index: int) -> Operand:
        return Operand(index)

    def number(self, index: int, type: type) -> Number:
        return Number(index, type)

    def leaf(self, shape: Shape, location: str | None) -> Node:
        return Node(Call(LEAF, (), (), (), (shape,)), (), (), location)

    def call(
        self,
        operator: str,
        args: tuple[Any, ...],
        kwargs: tuple[tuple[str, Any], ...],
        inputs: tuple[Shape, ...],
        outputs: tuple[Shape | None, ...],
    ) -> Call:
        return Call(operator, args, kwargs, inputs, outputs)

    def node(self, call: Call, operands: tuple[Value, ...], numbers: tuple[Any, ...], location: str | None) -> Node:
        return Node(call, operands, numbers, location)

    def value(self, node: Node, index: int) -> Value:
        return Value(node, index)

    def shape_of(self, value: Value) -> Shape:
        return value.shape

    def node_of(self, value: Value) -> Node:
        return value.node

    def graph(self, nodes: list[Node], results: list[Value]) -> Graph:
        return Graph(nodes, results)
