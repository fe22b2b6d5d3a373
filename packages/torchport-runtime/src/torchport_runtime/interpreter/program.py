"""A graph as a list of calls, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from torchport_runtime.errors import ExecutionError, TorchportError, UnsupportedOperationError
from torchport_runtime.facts import facts_of
from torchport_runtime.interpreter.dtypes import NAMES, numpy_dtype
from torchport_runtime.interpreter.layers import LAYERS
from torchport_runtime.interpreter.pointwise import POINTWISE
from torchport_runtime.interpreter.reductions import REDUCTIONS
from torchport_runtime.interpreter.shapes import SHAPES
from torchport_runtime.plain import LEAF, PARTITION, DType, Graph, Node, Number, Operand

OPERATORS: Mapping[str, Callable[..., Any]] = {**POINTWISE, **SHAPES, **REDUCTIONS, **LAYERS}
"""Every operator that runs here."""

_DRAWS = frozenset({"aten.native_dropout.default"})

Part = Callable[[list[Any], list[Any]], list[Any]]


def unsupported(graph: Graph) -> list[str]:
    """The operators of a graph that do not run here, each with its first line in the host's program."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        op = node.call.op
        trains = op in _DRAWS and (len(node.call.args) < 3 or node.call.args[2] is not False)
        if op not in (LEAF, PARTITION) and (op not in OPERATORS or trains):
            found.setdefault(op, f"{op}{f' at {node.location}' if node.location else ''}")
    return list(found.values())


class Program:
    """A graph, ready to run.

    Args:
        graph: the graph.
        parts: how its ``port.partition`` nodes are called, by name.

    Attributes:
        facts: what it takes and gives.

    Raises:
        UnsupportedOperationError: operators do not run here; all are listed.
    """

    def __init__(self, graph: Graph, parts: Mapping[str, Part]) -> None:
        missing = unsupported(graph)
        if missing:
            lines = "".join(f"\n  {m}" for m in missing)
            raise UnsupportedOperationError(
                f"{len(missing)} operators do not run in numpy:{lines}\nLower the module to a backend that has them, "
                "or run it where PyTorch is."
            )
        self.facts = facts_of(graph)
        slot: dict[tuple[int, int], int] = {(id(n), 0): i for i, n in enumerate(graph.parameters)}
        self._inputs = len(slot)
        number = 0
        last_use: dict[int, int] = {}
        calls: list[tuple[Callable[[list[Any], list[Any]], Sequence[Any]], tuple[int, ...], Node]] = []
        count = self._inputs
        for node in graph.nodes:
            if node.call.op == LEAF:
                continue
            reads = [slot[id(v.node), v.index] for v in node.operands]
            for read in reads:
                last_use[read] = len(calls)
            run = _call_of(node, reads, number, parts)
            number += len(node.numbers)
            writes = []
            for i in range(len(node.call.outputs)):
                slot[id(node), i] = count
                writes.append(count)
                count += 1
            calls.append((run, tuple(writes), node))
        self._results = [slot[id(v.node), v.index] for v in graph.results]
        kept = set(self._results)
        self._calls = [
            (run, writes, node, tuple(r for r, at in last_use.items() if at == i and r not in kept))
            for i, (run, writes, node) in enumerate(calls)
        ]
        self._count = count

    def __call__(self, inputs: list[Any], numbers: list[Any]) -> list[Any]:
        """The results.

        Raises:
            ExecutionError: an operator failed; its line in the host's program is named.
        """
        values = inputs + [None] * (self._count - self._inputs)
        for run, writes, node, dead in self._calls:
            try:
                outputs = run(values, numbers)
            except TorchportError:
                raise
            except (ValueError, IndexError, TypeError, ArithmeticError, MemoryError) as error:
                where = f" at {node.location}" if node.location else ""
                raise ExecutionError(f"{node.call.op}{where} failed: {error}") from error
            for i, value in zip(writes, outputs, strict=True):
                values[i] = value
            for i in dead:
                values[i] = None
        return [values[i] for i in self._results]


def _call_of(
    node: Node, reads: list[int], first_number: int, parts: Mapping[str, Part]
) -> Callable[[list[Any], list[Any]], Sequence[Any]]:
    """A function of all values and all numbers that gives the node's outputs."""
    if node.call.op == PARTITION:
        part = parts[str(node.call.args[0])]
        end = first_number + len(node.numbers)
        return lambda values, numbers: part([values[i] for i in reads], numbers[first_number:end])
    function = OPERATORS[node.call.op]
    args = [_template(a, reads, first_number) for a in node.call.args]
    kwargs = {k: _template(v, reads, first_number) for k, v in node.call.kwargs}
    if node.call.op == "port.scalar":
        shape = node.call.outputs[0]
        assert shape is not None
        kwargs["dtype"] = _fixed(DType(shape.dtype))
    wanted = [None if s is None else s.dtype for s in node.call.outputs]

    def run(values: list[Any], numbers: list[Any]) -> Sequence[Any]:
        found = function(*[a(values, numbers) for a in args], **{k: v(values, numbers) for k, v in kwargs.items()})
        outputs = found if isinstance(found, list) else [found]
        return [_as(x, dtype) for x, dtype in zip(outputs, wanted, strict=True)]

    return run


def _fixed(value: Any) -> Callable[[list[Any], list[Any]], Any]:
    return lambda values, numbers: value


def _template(template: Any, reads: list[int], first_number: int) -> Callable[[list[Any], list[Any]], Any]:
    if isinstance(template, Operand):
        at = reads[template.index]
        return lambda values, numbers: values[at]
    if isinstance(template, Number):
        place = first_number + template.index
        return lambda values, numbers: numbers[place]
    if isinstance(template, tuple):
        items = [_template(x, reads, first_number) for x in template]
        return lambda values, numbers: [x(values, numbers) for x in items]
    return _fixed(template)


def _as(x: Any, dtype: str | None) -> Any:
    """The output as an array of the type that the graph says: numpy's own rules differ here and there."""
    if dtype is None:
        return x
    if not isinstance(x, np.ndarray):
        x = np.asarray(x)
    return x if NAMES.get(x.dtype) == dtype else x.astype(numpy_dtype(dtype))
