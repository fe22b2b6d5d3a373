"""Graphs made by hand, for laws that say something of a single call of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.backend import BackendData, BackendDevice, BackendDeviceType, Shape
from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, number, operand
from torchport.ir.graph import Graph
from torchport.ir.inference import DynamicOutput, infer
from torchport.ir.node import Node, Value

aten = torch.ops.aten
_NOWHERE = BackendDevice(BackendDeviceType("NONE"))


class Number:
    """A Python number that is an input of the graph."""

    def __init__(self, value: bool | int | float | complex) -> None:
        self.value = value


class Sketch:
    """A graph in the making.

    Args:
        builder: the backend's factory of nodes.
    """

    def __init__(self, builder: IrBuilder | None = None) -> None:
        self.builder = builder or IrBuilder()
        self.nodes: list[Node] = []

    def leaf(self, data: BackendData) -> Value:
        """A parameter with data."""
        node = self.builder.make_device_data(data)
        self.nodes.append(node)
        return node.value()

    def parameter(self, dtype: torch.dtype, *sizes: int) -> Value:
        """A parameter without data, for graphs that are lowered ahead of time."""
        return self.leaf(BackendData(_NOWHERE, Shape(dtype, sizes)))

    def call(self, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """The result of an operator, or a tuple of them."""
        operands: list[Value] = []
        numbers: list[Any] = []

        def template(x: Any) -> Any:
            if isinstance(x, Value):
                operands.append(x)
                return operand(len(operands) - 1)
            if isinstance(x, Number):
                numbers.append(x.value)
                return number(len(numbers) - 1, type(x.value))
            return tuple(map(template, x)) if isinstance(x, list | tuple) else x

        templates = tuple(map(template, args))
        keywords = {k: template(v) for k, v in sorted(kwargs.items())}
        inputs = tuple(v.shape for v in operands)
        try:
            outputs = infer(op, templates, keywords, inputs, numbers)
        except DynamicOutput as dynamic:
            outputs = dynamic.outputs
        call = Call(op, templates, tuple(keywords.items()), inputs, outputs)
        node = self.builder.make_generic(call, tuple(operands), tuple(numbers))
        self.nodes.append(node)
        values = tuple(node.value(i) for i in range(len(outputs)))
        return values[0] if len(values) == 1 else values

    def graph(self, *results: Value) -> Graph:
        """The graph of these results."""
        return Graph(self.nodes, results)


def sums_and_products(data: Sequence[BackendData], builder: IrBuilder | None = None) -> Graph:
    """Of two data of the same sizes: their sum, their product, and the negative of the second."""
    sketch = Sketch(builder)
    a, b = (sketch.leaf(d) for d in data)
    total = sketch.call(aten.add.Tensor, a, b)
    product = sketch.call(aten.mul.Tensor, a, b)
    return sketch.graph(total, product, sketch.call(aten.neg.default, b))


def doubled(data: BackendData, builder: IrBuilder | None = None) -> Graph:
    """The sum of data with itself."""
    sketch = Sketch(builder)
    a = sketch.leaf(data)
    return sketch.graph(sketch.call(aten.add.Tensor, a, a))


def scaled(data: BackendData, factor: float, builder: IrBuilder | None = None) -> Graph:
    """Data times a number that is an input of the graph."""
    sketch = Sketch(builder)
    return sketch.graph(sketch.call(aten.mul.Tensor, sketch.leaf(data), Number(factor)))
