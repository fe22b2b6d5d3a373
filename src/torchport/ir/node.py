"""Nodes and values of the graph."""

from __future__ import annotations

from typing import Any

from torchport.ir.call import DEVICE_DATA, Call
from torchport.ir.location import Location
from torchport.ir.shape import Shape


class Node:
    """One operation of a graph: a call, the values it reads, the numbers it takes, the user's line.

    Attributes:
        call: the operator with its static arguments and the shapes of its operands and outputs.
        operands: the values it reads, as many as ``call.inputs``.
        numbers: the Python numbers it takes; inputs of the graph, not part of its hash.
        location: the user's line, or ``None``.
        data: the device's data, for a device-data node; ``None`` for every other node.
        trace, id: the serial number of the trace that the node was last numbered in, and the number of its first
            output there.
    """

    __slots__ = ("call", "data", "id", "location", "numbers", "operands", "trace")

    def __init__(
        self,
        call: Call,
        operands: tuple[Value, ...] = (),
        numbers: tuple[Any, ...] = (),
        location: Location = None,
        data: Any = None,
    ) -> None:
        self.call = call
        self.operands = operands
        self.numbers = numbers
        self.location = location
        self.data = data
        self.trace = 0
        self.id = -1

    @property
    def op(self) -> Any:
        """The operator: an ATen overload or a special operator."""
        return self.call.op

    @property
    def is_device_data(self) -> bool:
        """Whether this is a leaf that stands for data on the device."""
        return self.call.op is DEVICE_DATA

    @property
    def outputs(self) -> tuple[Shape | None, ...]:
        """The shapes of the results, flattened."""
        return self.call.outputs

    def value(self, index: int = 0) -> Value:
        """The result of that index."""
        return Value(self, index)

    def __repr__(self) -> str:
        return f"Node({self.call!r})"


class Value:
    """One result of a node."""

    __slots__ = ("index", "node")

    def __init__(self, node: Node, index: int = 0) -> None:
        self.node = node
        self.index = index

    @property
    def shape(self) -> Shape:
        """The shape of the result.

        Raises:
            ValueError: the operator returns no tensor at this index.
        """
        shape = self.node.call.outputs[self.index]
        if shape is None:
            raise ValueError(f"output {self.index} of {self.node.call.name} is no tensor")
        return shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.node is other.node and self.index == other.index

    def __hash__(self) -> int:
        return hash((id(self.node), self.index))

    def __repr__(self) -> str:
        return f"Value({self.node.call.name}, {self.index})"
