"""Graphs to text. The form is defined in :mod:`torchport.ir.text`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from torchport.ir.call import Number, Operand
from torchport.ir.location import Location
from torchport.ir.node import Node, Value
from torchport.ir.operators import operator_name
from torchport.ir.shape import dtype_name

if TYPE_CHECKING:
    # A graph prints itself with this module, which therefore only names its type.
    from torchport.ir.graph import Graph


def print_graph(graph: Graph) -> str:
    """The text of a graph, ending in a newline.

    Raises:
        ValueError: a node or a result reads a value that no earlier node of the graph makes.
    """
    printer = _Printer()
    for node in graph.nodes:
        printer.add(node)
    return printer.text(graph.results)


def print_constant(value: Any) -> str:
    """The text of a static argument that is neither tensor nor number nor list."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, torch.device):
        return f'device("{value}")'
    # Printing is for people who look for a mistake: it never fails because of a value. The parser refuses this.
    return f"<{type(value).__qualname__} {' '.join(repr(value).split())}>"


def slots(arguments: Any) -> Iterator[Operand | Number]:
    """Every operand and number in a call's arguments, from left to right."""
    for x in arguments:
        if type(x) is Operand or type(x) is Number:
            yield x
        elif type(x) is tuple:
            yield from slots(x)


def _print_location(location: Location) -> str:
    if location is None:
        return ""
    text = str(location)
    plain = text.isprintable() and text == text.strip() and text[:1] not in ("", '"')
    return f"  # {text if plain else json.dumps(text)}"


class _Printer:
    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._count = 0
        self._parameters: list[tuple[str, str]] = []
        self._numbers: list[str] = []
        self._lines: list[str] = []

    def add(self, node: Node) -> None:
        call = node.call
        if node.is_device_data:
            text = f"%{self._count}: {call.outputs[0]!r}"
            self._parameters.append((text, _print_location(node.location)))
        else:
            self._lines.append(self._node(node))
        self._first[id(node)] = self._count
        self._count += max(1, len(call.outputs))

    def _node(self, node: Node) -> str:
        call = node.call
        found = list(slots(call.args)) + list(slots(value for _, value in call.kwargs))
        in_order = [x.index for x in found if type(x) is Operand] == list(range(len(node.operands)))
        operands = [self._value(v) for v in node.operands]
        if not in_order:
            operands = [f"{text}@{i}" for i, text in enumerate(operands)]
        for i, (seen, value) in enumerate(zip(call.inputs, node.operands, strict=False)):
            if seen is not value.shape:
                operands[i] += f" as {seen!r}"
        numbers = [f"${len(self._numbers) + i}" for i in range(len(node.numbers))]
        types = {x.index: x.type for x in found if type(x) is Number}
        for i, value in enumerate(node.numbers):
            # A number that arrived as another type (an int for a float) is used as its static type says.
            type_ = types.get(i, type(value))
            self._numbers.append(f"{numbers[i]}: {type_.__name__} = {print_constant(type_(value))}")

        def item(x: Any) -> str:
            if type(x) is Operand:
                return operands[x.index]
            if type(x) is Number:
                return numbers[x.index]
            if type(x) is tuple:
                return f"[{', '.join(map(item, x))}]"
            return print_constant(x)

        arguments = [item(x) for x in call.args] + [f"{name}={item(x)}" for name, x in call.kwargs]
        text = f"{operator_name(call.op)}({', '.join(arguments)}){_print_location(node.location)}"
        if not call.outputs:
            return text
        outputs = [
            "_" if shape is None else f"%{number}: {shape!r}" for number, shape in enumerate(call.outputs, self._count)
        ]
        return f"{', '.join(outputs)} = {text}"

    def _value(self, value: Value) -> str:
        first = self._first.get(id(value.node))
        if first is None:
            raise ValueError(
                f"print_graph: {value!r} is read before its node is listed; "
                "list nodes operands first, or use Graph.of_results()"
            )
        return f"%{first + value.index}"

    def text(self, results: list[Value]) -> str:
        if any(location for _, location in self._parameters):
            lines = [f"  {text},{location}" for text, location in self._parameters]
            lines += [f"  {text}," for text in self._numbers]
            head = "\n".join(["graph(", *lines, ") {"])
        else:
            head = f"graph({', '.join([*(text for text, _ in self._parameters), *self._numbers])}) {{"
        wanted = ", ".join(map(self._value, results))
        body = [f"  {line}" for line in self._lines]
        return "\n".join([head, *body, f"  return {wanted}".rstrip(), "}", ""])
