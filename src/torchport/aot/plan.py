"""How a method is cut: what is called in order, and what the backend refused."""

from __future__ import annotations

from dataclasses import dataclass

from torchport.ir.graph import Graph
from torchport.ir.node import Node


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node that the backend does not run."""

    node: Node
    reason: str

    def __str__(self) -> str:
        where = f" at {self.node.location}" if self.node.location is not None else ""
        return f"{self.node.call.name}{where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A method, cut.

    Attributes:
        graph: what is called in order; parts are ``port.partition`` nodes, the interpreter runs the others.
        parts: the graphs of the parts by name.
        refusals: the nodes that the backend refused.
    """

    graph: Graph
    parts: dict[str, Graph]
    refusals: list[Refusal]
