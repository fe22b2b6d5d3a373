"""Graphs to ``torch.fx``. What becomes of what is told in :mod:`torchport.ir.fx`."""

from __future__ import annotations

import linecache
import operator
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchport.ir.call import SCALAR, TENSOR_LIST
from torchport.ir.graph import Graph
from torchport.ir.location import Location, SourceLocation
from torchport.ir.node import Node
from torchport.ir.shape import Shape
from torchport.ir.structure import grouped, output_structure

SCALAR_TENSOR = torch.ops.aten.scalar_tensor.default
"""What ``port.scalar`` is in fx."""
RESHAPE = torch.ops.aten.reshape.default
"""What ``aten.view`` and its kin are in fx."""
_aten = torch.ops.aten
_VIEWS = frozenset(
    (_aten.view.default, _aten.view_copy.default, _aten._unsafe_view.default, _aten._reshape_alias.default)
)
_STRIDED = frozenset((_aten.as_strided.default, _aten.as_strided_copy.default, _aten.as_strided_scatter.default))


def to_fx(graph: Graph) -> fx.GraphModule:
    """A module that computes the graph: tensors of the parameters, then numbers, in; a tuple of the results out.

    Raises:
        ValueError: an operator's outputs cannot be grouped as it returns them.
    """
    return _ToFx(graph).module()


def _meta_tensor(shape: Shape | None) -> torch.Tensor | None:
    if shape is None:
        return None
    return torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype, device="meta")


def _stack_trace(location: Location) -> str | None:
    if isinstance(location, SourceLocation):
        line = location.line
        code = linecache.getline(location.file, line).strip()
        frame = f'File "{location.file}", line {line}, in {location.function}'
    else:
        # The text may come from another machine, so its file is not read.
        found = re.fullmatch(r"(.+):(\d+)(?: \(.*\))?", str(location))
        if found is None:
            return None
        code = ""
        frame = f'File "{found[1]}", line {found[2]}, in <unknown>'
    # Without a line of code after it torch's printers overlook the frame.
    return f"{frame}\n    {code or '…'}"


class _ToFx:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._fx = fx.Graph()
        self._values: dict[tuple[int, int], fx.Node] = {}
        self._numbers: dict[tuple[int, int], fx.Node] = {}
        read = [v for n in graph.nodes for v in n.operands] + graph.results
        self._read = {(id(v.node), v.index) for v in read}

    def module(self) -> fx.GraphModule:
        for k, node in enumerate(self._graph.parameters):
            made = self._fx.placeholder(f"p{k}")
            self._describe(made, node.location, _meta_tensor(node.outputs[0]), node.outputs)
            self._values[id(node), 0] = made
        for k, (node, i) in enumerate(self._graph.numbers):
            made = self._fx.placeholder(f"n{k}")
            made.meta["val"] = node.numbers[i]
            self._numbers[id(node), i] = made
        for node in self._graph.nodes:
            if node.call.op is TENSOR_LIST:
                for i, value in enumerate(node.operands):
                    self._values[id(node), i] = self._values[id(value.node), value.index]
            elif not node.is_device_data:
                self._add(node)
        results = tuple(self._values[id(v.node), v.index] for v in self._graph.results)
        self._fx.output(results).meta["val"] = tuple(r.meta["val"] for r in results)
        return fx.GraphModule(torch.nn.Module(), self._fx, class_name="TorchportGraph")

    def _add(self, node: Node) -> None:
        call = node.call
        numbers = [self._numbers[id(node), i] for i in range(len(node.numbers))]
        vals = [_meta_tensor(shape) for shape in call.outputs]
        if call.op is SCALAR:
            made = self._fx.call_function(SCALAR_TENSOR, (numbers[0],), {"dtype": node.value().shape.dtype})
            self._describe(made, node.location, vals[0], call.outputs)
            self._values[id(node), 0] = made
            return
        operands = [self._values[id(v.node), v.index] for v in node.operands]
        if call.op in _STRIDED:
            operands[0] = self._in_layout(operands[0], call.inputs[0])
        args, named = call.bind(operands, numbers)
        structure = output_structure(call)
        target: Any = call.op
        if call.op in _VIEWS:
            target, args = RESHAPE, args[:2]
        made = self._fx.call_function(target, tuple(args), named)
        self._describe(made, node.location, grouped(structure, vals) if structure else None, call.outputs)
        at = 0
        for group, length in enumerate(structure):
            whole = made if len(structure) == 1 else None
            for i in range(1 if length is None else length):
                if (id(node), at) in self._read:
                    whole = whole or self._item(made, group)
                    self._values[id(node), at] = whole if length is None else self._item(whole, i)
                at += 1

    def _in_layout(self, value: fx.Node, shape: Shape) -> fx.Node:
        # Such an operator reads memory, of which an fx tensor may have more, and in another order, than the call says.
        if shape.is_contiguous:
            made = self._fx.call_function(_aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
        else:
            made = self._fx.call_function(torch.ops.prims.copy_strided.default, (value, list(shape.strides)))
        self._describe(made, None, _meta_tensor(shape), (shape,))
        return made

    def _item(self, node: fx.Node, index: int) -> fx.Node:
        made = self._fx.call_function(operator.getitem, (node, index))
        made.meta["val"] = node.meta["val"][index]
        made.meta.update({k: node.meta[k] for k in ("location", "stack_trace") if k in node.meta})
        return made

    @staticmethod
    def _describe(made: fx.Node, location: Location, val: Any, shapes: Sequence[Shape | None]) -> None:
        made.meta["val"] = val
        if location is not None:
            made.meta["location"] = str(location)
            trace = _stack_trace(location)
            if trace:
                made.meta["stack_trace"] = trace
        if any(shape is not None and any(shape.symbolic) for shape in shapes):
            made.meta["symbolic"] = [shape and shape.symbolic for shape in shapes]
