"""Text to graphs. The form is defined in :mod:`torchport.ir.text`; nothing of the text is ever executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchport.ir.call import DEVICE_DATA, Call, Number, Operand, number, operand
from torchport.ir.graph import Graph
from torchport.ir.location import TextLocation
from torchport.ir.node import Node, Value
from torchport.ir.operators import find_operator, operator_names
from torchport.ir.shape import Shape, dtype_name
from torchport.ir.untrusted import refusal
from torchport_runtime.errors import DamagedFileError, IRSyntaxError, SavedFileError
from torchport_runtime.text import grammar


def parse_graph(text: str) -> Graph:
    """The graph that a text describes; its parameters have shapes, and no data.

    Raises:
        IRSyntaxError: the text is not of the form that :mod:`torchport.ir.text` defines, or names an operator that
            does not exist here.
    """
    graph: Graph = grammar.parse_graph(text, _TorchMakers())
    return graph


def graph_of_payload(name: str, payload: bytes | memoryview) -> Graph:
    """The graph of a part whose payload is its text.

    Raises:
        DamagedFileError: it is none.
    """
    try:
        return parse_graph(bytes(payload).decode())
    except (IRSyntaxError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"the payload of {name} is no graph: {error}") from error


class _TorchMakers:
    """The objects of this package, and torch's."""

    dtypes: Mapping[str, Any] = {dtype_name(x): x for x in vars(torch).values() if isinstance(x, torch.dtype)}
    constants: Mapping[str, Any] = {
        str(x): x for x in vars(torch).values() if isinstance(x, torch.layout | torch.memory_format)
    }

    def device(self, name: str) -> torch.device:
        return torch.device(name)

    def shape(
        self,
        dtype: torch.dtype,
        sizes: tuple[int, ...],
        strides: tuple[int, ...] | None,
        symbolic: tuple[bool | str, ...],
    ) -> Shape:
        return Shape(dtype, sizes, strides, symbolic)

    def operator(self, name: str) -> Any:
        found = find_operator(name)
        if reason := refusal(found):
            raise SavedFileError(f"a saved module may not call {name}: {reason}")
        return found

    def operator_names(self) -> Sequence[str]:
        return operator_names()

    def operand(self, index: int) -> Operand:
        return operand(index)

    def number(self, index: int, type: type) -> Number:
        return number(index, type)

    def leaf(self, shape: Shape, location: str | None) -> Node:
        return Node(Call(DEVICE_DATA, outputs=(shape,)), location=_location(location))

    def call(
        self,
        operator: Any,
        args: tuple[Any, ...],
        kwargs: tuple[tuple[str, Any], ...],
        inputs: tuple[Shape, ...],
        outputs: tuple[Shape | None, ...],
    ) -> Call:
        return Call(operator, args, kwargs, inputs, outputs)

    def node(self, call: Call, operands: tuple[Value, ...], numbers: tuple[Any, ...], location: str | None) -> Node:
        return Node(call, operands, numbers, _location(location))

    def value(self, node: Node, index: int) -> Value:
        return Value(node, index)

    def shape_of(self, value: Value) -> Shape:
        return value.shape

    def node_of(self, value: Value) -> Node:
        return value.node

    def graph(self, nodes: list[Node], results: list[Value]) -> Graph:
        return Graph(nodes, results)


def _location(text: str | None) -> TextLocation | None:
    return None if text is None else TextLocation(text)
