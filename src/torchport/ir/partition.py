"""Cutting a graph into parts that are called as one node each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from torchport.ir.call import DEVICE_DATA, PARTITION, Call, number, operand
from torchport.ir.graph import Graph
from torchport.ir.node import Node, Value


def cut(graph: Graph, parts: Sequence[Sequence[Node]], names: Sequence[str]) -> tuple[Graph, dict[str, Graph]]:
    """The graph with a node ``port.partition`` for each part, and the graphs of the parts by name.

    Args:
        graph: stays as it is.
        parts: disjoint sets of its nodes, none of them parameters; no path leaves a part and comes back.
        names: one per part.

    Raises:
        ValueError: the parts would make a cycle.
    """
    part_of = {id(node): p for p, nodes in enumerate(parts) for node in nodes}
    position = {id(node): i for i, node in enumerate(graph.nodes)}
    crossing: list[dict[tuple[int, int], Value]] = [{} for _ in parts]
    for node in graph.nodes:
        own = part_of.get(id(node))
        for value in node.operands:
            made_in = part_of.get(id(value.node))
            if made_in is not None and made_in != own:
                crossing[made_in].setdefault((id(value.node), value.index), value)
    for value in graph.results:
        made_in = part_of.get(id(value.node))
        if made_in is not None:
            crossing[made_in].setdefault((id(value.node), value.index), value)

    members = [sorted(nodes, key=lambda n: position[id(n)]) for nodes in parts]
    outer: dict[tuple[int, int], Value] = {}
    made: list[Node] = []
    graphs: dict[str, Graph] = {}
    for unit in _in_order(graph, members, part_of, position):
        if isinstance(unit, Node):
            operands = tuple(outer[id(v.node), v.index] for v in unit.operands)
            copy = Node(unit.call, operands, unit.numbers, unit.location, unit.data)
            made.append(copy)
            outer.update({(id(unit), i): Value(copy, i) for i in range(max(1, len(unit.outputs)))})
            continue
        inner, reads = _part(members[unit], list(crossing[unit].values()))
        graphs[names[unit]] = inner
        numbers = tuple(node.numbers[i] for node, i in inner.numbers)
        call = Call(
            PARTITION,
            (
                names[unit],
                tuple(operand(i) for i in range(len(reads))),
                tuple(number(i, _type(node, i_)) for i, (node, i_) in enumerate(inner.numbers)),
            ),
            (),
            tuple(v.shape for v in reads),
            tuple(v.shape for v in crossing[unit].values()),
        )
        node = Node(call, tuple(outer[id(v.node), v.index] for v in reads), numbers, members[unit][0].location)
        made.append(node)
        outer.update({key: Value(node, i) for i, key in enumerate(crossing[unit])})
    return Graph(made, [outer[id(v.node), v.index] for v in graph.results]), graphs


def _type(node: Node, index: int) -> type:
    value = node.numbers[index]
    return int if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _part(nodes: list[Node], results: list[Value]) -> tuple[Graph, list[Value]]:
    """The graph of a part, and the values of the whole that its parameters stand for."""
    inside = {id(n) for n in nodes}
    reads: dict[tuple[int, int], Value] = {}
    for node in nodes:
        for value in node.operands:
            if id(value.node) not in inside:
                reads.setdefault((id(value.node), value.index), value)
    leaves = {key: Node(Call(DEVICE_DATA, outputs=(value.shape,))) for key, value in reads.items()}
    own: dict[int, Node] = {}

    def inner(value: Value) -> Value:
        key = (id(value.node), value.index)
        return Value(leaves[key]) if key in leaves else Value(own[key[0]], value.index)

    for node in nodes:
        own[id(node)] = Node(node.call, tuple(map(inner, node.operands)), node.numbers, node.location)
    return Graph([*leaves.values(), *own.values()], [inner(v) for v in results]), list(reads.values())


def _in_order(
    graph: Graph, members: list[list[Node]], part_of: dict[int, int], position: dict[int, int]
) -> list[Node | int]:
    """Nodes outside of parts, and parts by number, in an order in which everything is made before it is read.

    What is outside goes first where it can, so that few runs of it lie between the parts.
    """
    units: list[Node | int] = [n for n in graph.nodes if id(n) not in part_of]
    count = len(units)
    units += range(len(members))
    unit_of = {id(u): i for i, u in enumerate(units) if isinstance(u, Node)}
    unit_of.update({node: count + part for node, part in part_of.items()})
    needs: list[set[int]] = [set() for _ in units]
    feeds: list[set[int]] = [set() for _ in units]
    for node in graph.nodes:
        own = unit_of[id(node)]
        for value in node.operands:
            other = unit_of[id(value.node)]
            if other != own:
                needs[own].add(other)
                feeds[other].add(own)
    first = [position[id(u)] if isinstance(u, Node) else position[id(members[u][0])] for u in units]
    ready = [(i >= count, first[i], i) for i, n in enumerate(needs) if not n]
    heapq.heapify(ready)
    order: list[Node | int] = []
    while ready:
        i = heapq.heappop(ready)[2]
        order.append(units[i])
        for user in feeds[i]:
            needs[user].discard(i)
            if not needs[user]:
                heapq.heappush(ready, (user >= count, first[user], user))
    if len(order) < len(units):
        raise ValueError("the parts would make a cycle: a path leaves one and comes back")
    return order
