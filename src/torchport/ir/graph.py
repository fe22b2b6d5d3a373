"""A graph: nodes in the order in which they were made, and the values that are wanted of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from torchport.ir.node import Node, Value
from torchport.ir.printer import print_graph


class Graph:
    """Nodes in topological order, and results.

    Attributes:
        nodes: operands come before their users; device-data leaves are in it, at their first use.
        results: the values that the graph is asked for.
        parameters: the device-data nodes, in order: the graph's tensor inputs.
        numbers: ``(node, index)`` of every Python number that a node takes, in order: the graph's number inputs.

    Invariant: no method recurses over the nodes, so a graph of any depth works (tests/unit/test_large_graph.py).
    """

    __slots__ = ("nodes", "numbers", "parameters", "results")

    def __init__(self, nodes: Iterable[Node], results: Sequence[Value]) -> None:
        self.nodes = list(nodes)
        self.results = list(results)
        self.parameters = [n for n in self.nodes if n.is_device_data]
        self.numbers = [(n, i) for n in self.nodes for i in range(len(n.numbers))]

    @classmethod
    def of_results(cls, results: Sequence[Value]) -> Graph:
        """The graph of everything that the results need, in post-order, found without recursion."""
        return cls(post_order([v.node for v in results]), results)

    def without_dead_nodes(self) -> Graph:
        """The same results from the nodes that they need; random nodes stay, since they advance the generator."""
        needed = {id(v.node) for v in self.results}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if id(node) in needed or node.call.is_random:
                kept.append(node)
                needed.update(id(v.node) for v in node.operands)
        kept.reverse()
        return Graph(kept, self.results)

    def copy(self) -> Graph:
        """The same graph of nodes of its own: what keeps it keeps no data that somebody else's leaves stand for."""
        own: dict[int, Node] = {}
        for node in self.nodes:
            operands = tuple(Value(own[id(v.node)], v.index) for v in node.operands)
            own[id(node)] = Node(node.call, operands, node.numbers, node.location, node.data)
        return Graph(own.values(), [Value(own[id(v.node)], v.index) for v in self.results])

    @property
    def hash(self) -> str:
        """128 bits of BLAKE2b over structure, in hexadecimal: equal in every process, whatever the numbers' values."""
        position: dict[int, int] = {}
        digest = blake2b(digest_size=16)
        for i, node in enumerate(self.nodes):
            position[id(node)] = i
            digest.update(node.call.digest.to_bytes(8, "little"))
            digest.update(repr([(position[id(v.node)], v.index) for v in node.operands]).encode())
        digest.update(repr([(position[id(v.node)], v.index) for v in self.results]).encode())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.nodes)

    def __str__(self) -> str:
        return print_graph(self)


def post_order(roots: Iterable[Node]) -> list[Node]:
    """Every node that the roots need, operands first. Iterative: depth is bounded by memory, not by the stack."""
    done: set[int] = set()
    order: list[Node] = []
    for root in roots:
        stack: list[tuple[Node, int]] = [(root, 0)]
        while stack:
            node, i = stack.pop()
            if id(node) in done:
                continue
            if i < len(node.operands):
                stack.append((node, i + 1))
                child = node.operands[i].node
                if id(child) not in done:
                    stack.append((child, 0))
            else:
                done.add(id(node))
                order.append(node)
    return order
