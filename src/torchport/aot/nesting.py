"""Lowered modules inside a module that is lowered: they keep their own backend.

While torch.export captures the outer module, a lowered module's method is one operator, ``torchport::lowered_call``,
which the outer backend is not offered. When the outer graph is cut, the operator is replaced by the inner method's
graph, whose parts keep their names (with the place in front), payloads and backends.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

from torchport.errors import CaptureError
from torchport.ir.call import PARTITION, Call, fill_template
from torchport.ir.graph import Graph
from torchport.ir.node import Node, Value
from torchport.ir.size_expression import SizeExpression

_LIBRARY = torch.library.Library("torchport", "FRAGMENT")
_LIBRARY.define("lowered_call(Tensor[] inputs, str key) -> Tensor[]")


class Inner:
    """A method that can be called inside a capture.

    Attributes:
        graph: what is called in order.
        parts: by name, each with a ``graph``, a ``payload`` and a ``backend``.
        symbols: name → (position among the graph's parameters, dimension).
        run: the method's program.
    """

    def __init__(
        self,
        graph: Graph,
        parts: Mapping[str, Any],
        symbols: Mapping[str, tuple[int, int]],
        numbers: Callable[[Sequence[torch.Tensor]], list[Any]],
        run: Callable[[list[Any]], list[Any]],
    ) -> None:
        self.graph = graph
        self.parts = parts
        self.symbols = symbols
        self.numbers = numbers
        self.run = run


_known: WeakValueDictionary[str, Inner] = WeakValueDictionary()
_keys = itertools.count(1)


def register_inner(inner: Inner) -> str:
    """The key by which the operator finds a method, for as long as that lives."""
    key = f"lowered-{next(_keys)}"
    _known[key] = inner
    return key


def call_inner(tensors: list[torch.Tensor], key: str) -> list[torch.Tensor]:
    """The method's results, through the operator."""
    results: list[torch.Tensor] = torch.ops.torchport.lowered_call.default(tensors, key)
    return results


def _run(inputs: list[torch.Tensor], key: str) -> list[torch.Tensor]:
    inner = _known[key]
    return inner.run([*inputs, *inner.numbers(inputs)])


def _run_on_shapes(inputs: list[torch.Tensor], key: str) -> list[torch.Tensor]:
    inner = _known[key]
    numbers = iter(inner.numbers(inputs))
    return _interpret(inner.graph, inner.parts, list(inputs), numbers)


_LIBRARY.impl("lowered_call", _run, "CompositeExplicitAutograd")
torch.library.register_fake("torchport::lowered_call", _run_on_shapes, lib=_LIBRARY)


def _interpret(graph: Graph, parts: Mapping[str, Any], tensors: list[Any], numbers: Any) -> list[Any]:
    """The results of a graph, operator by operator, parts opened."""
    values: dict[tuple[int, int], Any] = {}
    given = iter(tensors)
    for node in graph.nodes:
        if node.is_device_data:
            values[id(node), 0] = next(given)
            continue
        operands = [values[id(v.node), v.index] for v in node.operands]
        own = [next(numbers) for _ in node.numbers]
        if node.op is PARTITION:
            outputs = _interpret(parts[node.call.args[0]].graph, parts, operands, iter(own))
        else:
            args = [fill_template(a, operands, own) for a in node.call.args]
            result = node.op(*args, **{k: fill_template(v, operands, own) for k, v in node.call.kwargs})
            outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        values.update({(id(node), i): x for i, x in enumerate(outputs)})
    return [values[id(v.node), v.index] for v in graph.results]


def is_lowered_call(node: Node) -> bool:
    """Whether a node is a call of a lowered module."""
    return node.op is torch.ops.torchport.lowered_call.default


def opened(graph: Graph, prefix: str) -> tuple[Graph, dict[str, Any]]:
    """The graph with every call of a lowered module replaced by that module's graph, and the parts that came with it.

    Args:
        graph: what is called in order.
        prefix: what the names of the parts begin with; a number follows.

    Raises:
        CaptureError: an integer of an inner graph follows from a size that the outer graph has no name for.
    """
    if not any(map(is_lowered_call, graph.nodes)):
        return graph, {}
    made: dict[tuple[int, int], Value] = {}
    nodes: list[Node] = []
    parts: dict[str, Any] = {}
    count = itertools.count()
    for node in graph.nodes:
        operands = tuple(made[id(v.node), v.index] for v in node.operands)
        if is_lowered_call(node):
            inner = _known[node.call.args[1]]
            names = {name: f"{prefix}{next(count)}.{name}" for name in inner.parts}
            results = _inlined(inner, operands, names, nodes)
            parts.update({names[name]: part for name, part in inner.parts.items()})
            made.update({(id(node), i): value for i, value in enumerate(results)})
            continue
        copy = Node(node.call, operands, node.numbers, node.location, node.data)
        nodes.append(copy)
        made.update({(id(node), i): Value(copy, i) for i in range(max(1, len(node.outputs)))})
    return Graph(nodes, [made[id(v.node), v.index] for v in graph.results]), parts


def _inlined(inner: Inner, operands: tuple[Value, ...], names: Mapping[str, str], nodes: list[Node]) -> list[Value]:
    bindings = {name: _binding(operands[i].shape, dim) for name, (i, dim) in inner.symbols.items()}
    own: dict[tuple[int, int], Value] = {}
    given = iter(operands)
    for node in inner.graph.nodes:
        if node.is_device_data:
            own[id(node), 0] = next(given)
            continue
        call = node.call
        if call.op is PARTITION:
            call = Call(PARTITION, (names[call.args[0]], *call.args[1:]), (), call.inputs, call.outputs)
        numbers = tuple(_rebound(n, bindings) for n in node.numbers)
        copy = Node(call, tuple(own[id(v.node), v.index] for v in node.operands), numbers, node.location)
        nodes.append(copy)
        own.update({(id(node), i): Value(copy, i) for i in range(max(1, len(node.outputs)))})
    return [own[id(v.node), v.index] for v in inner.graph.results]


def _binding(shape: Any, dim: int) -> str:
    """What a symbol of the inner graph is in the outer one: a symbol there, or a number."""
    symbol = shape.symbolic[dim]
    return symbol if isinstance(symbol, str) else str(shape.sizes[dim])


def _rebound(number: Any, bindings: Mapping[str, str]) -> Any:
    if not isinstance(number, SizeExpression):
        return number
    text = re.sub(r"[A-Za-z_]\w*", lambda m: bindings.get(m[0], m[0]), number.text)
    derived = re.search(r"\be\d+\b", text)
    if derived is not None:
        raise CaptureError(
            f"a lowered module inside this one takes a size that follows from others ({derived[0]}); pass it an input "
            "whose sizes are the outer module's own"
        )
    return SizeExpression(int(number), text)
