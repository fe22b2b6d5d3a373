"""Builds graphs by hand and runs them on the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.backend import DONATED, BackendData, BackendDevice, BackendDeviceType
from torchport.backends.interpreter import InterpretedComputation, InterpreterBackend
from torchport.ir.builder import IrBuilder
from torchport.ir.call import Call, number, operand
from torchport.ir.graph import Graph
from torchport.ir.inference import DynamicOutput, infer
from torchport.ir.location import TextLocation
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape

CPU0 = BackendDevice(BackendDeviceType("CPU"))
aten = torch.ops.aten


class Traced:
    """A graph in the making; calls take values, and numbers as :class:`N`."""

    def __init__(self, backend: InterpreterBackend | None = None) -> None:
        self.backend = backend or InterpreterBackend()
        self.nodes: list[Node] = []
        self.arguments: list[BackendData] = []

    def parameter(self, tensor: torch.Tensor) -> Value:
        shape = Shape(tensor.dtype, tuple(tensor.shape), tensor.stride())
        return self.leaf(self.backend.make_computation_data_from_tensor(tensor, shape, CPU0))

    def leaf(self, data: BackendData) -> Value:
        node = IrBuilder().make_device_data(data)
        self.nodes.append(node)
        self.arguments.append(data)
        return node.value()

    def call(self, op: OpOverload, *args: Any, line: str = "", outputs: Any = None, **kwargs: Any) -> Any:
        operands: list[Value] = []
        numbers: list[Any] = []

        def template(x: Any) -> Any:
            if isinstance(x, Value):
                operands.append(x)
                return operand(len(operands) - 1)
            if isinstance(x, N):
                numbers.append(x.value)
                return number(len(numbers) - 1, type(x.value))
            return tuple(map(template, x)) if isinstance(x, (list, tuple)) else x

        targs = tuple(map(template, args))
        tkwargs = {k: template(v) for k, v in sorted(kwargs.items())}
        inputs = tuple(v.shape for v in operands)
        if outputs is None:
            try:
                outputs = infer(op, targs, tkwargs, inputs, numbers)
            except DynamicOutput as dynamic:
                outputs = dynamic.outputs
        call = Call(op, targs, tuple(tkwargs.items()), inputs, outputs)
        node = Node(call, tuple(operands), tuple(numbers), TextLocation(line) if line else None)
        return self.add(node)

    def add(self, node: Node) -> Any:
        self.nodes.append(node)
        values = tuple(node.value(i) for i in range(len(node.outputs)))
        return values[0] if len(values) == 1 else values

    def compile(self, *results: Value, aliases: dict[int, int] | None = None) -> InterpretedComputation:
        context = self.backend.create_lowering_context("test", CPU0)
        for node in self.nodes:
            context.lower(node)
        for value in results:
            context.add_result(value)
        for result, parameter in (aliases or {}).items():
            context.set_up_alias(result, parameter)
        (compiled,) = self.backend.compile([context.build()])
        assert isinstance(compiled, InterpretedComputation)
        return compiled

    def number_data(self) -> list[BackendData]:
        make = self.backend.make_computation_data_from_scalar
        return [make(n.numbers[i], CPU0) for n, i in Graph(self.nodes, []).numbers]

    def execute(
        self, computation: InterpretedComputation, donate: Sequence[int] = (), arguments: Any = None
    ) -> list[BackendData]:
        arguments = [*(self.arguments if arguments is None else arguments), *self.number_data()]
        for i in donate:
            arguments[i].info = DONATED
        try:
            return self.backend.execute_computation(computation, arguments, CPU0)
        finally:
            for i in donate:
                arguments[i].info = None

    def run(self, *results: Value) -> list[torch.Tensor]:
        found = self.execute(self.compile(*results))
        return [self.backend.make_tensor_from_computation_data(d) for d in found]


class N:
    """A number of the graph."""

    def __init__(self, value: Any) -> None:
        self.value = value


def storage(data: BackendData) -> int:
    assert isinstance(data.handle, torch.Tensor)
    return data.handle.untyped_storage().data_ptr()
