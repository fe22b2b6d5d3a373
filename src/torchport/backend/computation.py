"""A lowered computation, before and after a backend has compiled it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from torchport.backend.device import BackendDevice
from torchport.ir.graph import Graph
from torchport.ir.shape import Shape


class SyncCause(StrEnum):
    """What asked for a computation."""

    BARRIER = "barrier"
    """``torchport.sync()``, or the automatic barrier after ``optimizer.step()``."""
    READ = "read"
    """A value was read: ``.item()``, ``.cpu()``, ``print``, …"""
    CUT = "cut"
    """The graph had grown past its bound."""
    EAGER = "eager"
    """An operator that cannot be deferred (a fallback, or an output of unknown size) needed its operands."""


class Computation:
    """A graph, lowered: what a backend compiles, and (a subclass, where it likes) what it executes.

    Attributes:
        name: for people and reports.
        graph: the IR it was lowered from.
        devices: the concrete devices that the program spans.
        aliases: result index → parameter index: the result may take the parameter's buffer.
        cause: whether a barrier or an implicit read asked for it.

    Its parameters are the graph's tensor inputs (``graph.parameters``), then its numbers (``graph.numbers``).
    """

    def __init__(
        self,
        name: str,
        graph: Graph,
        devices: Sequence[BackendDevice],
        aliases: dict[int, int] | None = None,
        cause: SyncCause = SyncCause.BARRIER,
    ) -> None:
        self.name = name
        self.graph = graph
        self.devices = tuple(devices)
        self.aliases = dict(aliases or {})
        self.cause = cause

    @property
    def parameter_count(self) -> int:
        """How many arguments it takes: tensors, then numbers."""
        return len(self.graph.parameters) + len(self.graph.numbers)

    @property
    def parameter_shapes(self) -> list[Shape | type]:
        """The shape of each tensor parameter, then the Python type of each number."""
        shapes: list[Shape | type] = [n.value().shape for n in self.graph.parameters]
        shapes += [type(n.numbers[i]) for n, i in self.graph.numbers]
        return shapes

    @property
    def parameter_names(self) -> list[str]:
        """``p0, p1, …`` for tensors, ``n0, n1, …`` for numbers."""
        return [f"p{i}" for i in range(len(self.graph.parameters))] + [f"n{i}" for i in range(len(self.graph.numbers))]

    @property
    def result_shape(self) -> list[Shape]:
        """The shapes of the results, in order."""
        return [v.shape for v in self.graph.results]

    @property
    def text(self) -> str:
        """The graph's text form."""
        return str(self.graph)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, {len(self.graph)} nodes, "
            f"{self.parameter_count} parameters, {len(self.graph.results)} results)"
        )
