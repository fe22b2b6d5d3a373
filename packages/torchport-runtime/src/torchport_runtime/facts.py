"""What a graph takes and gives, as far as it can be told without knowing its operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchport_runtime.plain import LEAF, PARTITION, Graph, Shape

TensorFacts = tuple[str, tuple[int | str, ...]]
"""Scalar type and sizes of a tensor; of a size that varies the name of its symbol, or ``?``."""


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What a graph takes and gives.

    Attributes:
        parameters: the tensor inputs.
        numbers: the type of each number input; ``None`` where it is not known.
        results: the results.
        calls: for each ``port.partition`` its name, and what it is called with and gives.
        has_symbols: whether a size that varies is there as such; else it may be there as that of the capture.
    """

    parameters: Sequence[TensorFacts]
    numbers: Sequence[type] | None
    results: Sequence[TensorFacts]
    calls: Sequence[tuple[str, GraphFacts]] = ()
    has_symbols: bool = True


def facts_of(graph: Graph) -> GraphFacts:
    """The facts of a graph."""
    return GraphFacts(
        [_tensor(n.call.outputs[0]) for n in graph.nodes if n.call.op == LEAF],
        [type(n.numbers[i]) for n, i in graph.numbers],
        [_tensor(v.shape) for v in graph.results],
        [
            (
                str(n.call.args[0]),
                GraphFacts(
                    list(map(_tensor, n.call.inputs)), list(map(type, n.numbers)), list(map(_tensor, n.call.outputs))
                ),
            )
            for n in graph.nodes
            if n.call.op == PARTITION
        ],
    )


def _tensor(shape: Shape | None) -> TensorFacts:
    if shape is None:
        return "nothing", ()
    symbols = shape.symbols or (False,) * len(shape.sizes)
    return shape.dtype, tuple(
        [s if isinstance(s, str) else "?" if s else n for n, s in zip(shape.sizes, symbols, strict=True)]
    )


def difference(declared: GraphFacts, found: GraphFacts) -> str:
    """In what a graph is another than it is declared to be; empty where it is in nothing.

    Args:
        declared: where it is called.
        found: of the graph itself.
    """
    if declared.numbers is not None and found.numbers is not None and list(declared.numbers) != list(found.numbers):
        return f"it takes the numbers {_types(found.numbers)}, and is called with {_types(declared.numbers)}"
    for what, wanted, got in (
        ("tensors", declared.parameters, found.parameters),
        ("results", declared.results, found.results),
    ):
        if len(wanted) != len(got):
            return f"it has {len(got)} {what}, and {len(wanted)} are declared"
        for i, (a, b) in enumerate(zip(wanted, got, strict=True)):
            if not fits(a, b, found.has_symbols):
                return f"{what[:-1]} {i} is {text_of(b)}, and {text_of(a)} is declared"
    return ""


def fits(declared: TensorFacts, found: TensorFacts, has_symbols: bool = True) -> bool:
    """Whether a tensor is what it is declared to be.

    Args:
        declared: a size that is a text, but no name, is an expression, which any size that varies may be.
        found: of the tensor itself.
        has_symbols: as in :class:`GraphFacts`.
    """
    if declared[0] != found[0] or len(declared[1]) != len(found[1]):
        return False
    return all(_size_fits(n, m, has_symbols) for n, m in zip(declared[1], found[1], strict=True))


def _size_fits(declared: int | str, found: int | str, has_symbols: bool) -> bool:
    if isinstance(declared, int):
        return found == declared
    if isinstance(found, int):
        return not has_symbols
    return found == declared or not declared.isidentifier()


def text_of(tensor: TensorFacts) -> str:
    """A tensor's scalar type and sizes, as in a graph."""
    return f"{tensor[0]}[{', '.join(map(str, tensor[1]))}]"


def _types(types: Sequence[type]) -> str:
    return f"({', '.join(t.__name__ for t in types)})"
