"""Every value of a graph by number: who makes it, who reads it, what shares its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from torch._ops import OpOverload

from torchport.backends.interpreter.aliasing import operand_indices
from torchport.backends.interpreter.layout import is_dense
from torchport.backends.interpreter.steps import Step
from torchport.ir.call import Call
from torchport.ir.graph import Graph
from torchport.ir.inference import is_dynamic
from torchport.ir.node import Node
from torchport.ir.shape import Shape


class Values:
    """The values of a graph as consecutive integers, in node order, then its numbers.

    Attributes:
        graph: the graph.
        steps: one per node; ``None`` for a parameter.
        first: for each node, the integer of its first output; one more at the end.
        node_of: for each value, its node's position.
        same: for each value, the value that it is the same as (itself, for most): identities are never run.
        shapes: for each value, its shape; ``None`` where the operator returns no tensor.
        parameters: value → parameter index.
        operands: for each node, the values it reads, identities resolved.
        alive: for each node, whether a result needs it; random nodes always are, since they advance the generator.
        uses: value → positions of the alive nodes that read it, ascending.
        results: the results' values, identities resolved.
        result_count: value → how often it is a result.
        returned: result index → parameter index, where the graph asks for a parameter itself.
        numbers_of: for each node, the integer of its first number.
        is_dynamic: for each value, whether its size may differ from its shape's.
    """

    def __init__(self, graph: Graph, lower: Callable[[Call], Step]) -> None:
        self.graph = graph
        nodes = graph.nodes
        position = {id(node): i for i, node in enumerate(nodes)}
        self.steps: list[Step | None] = [None if n.is_device_data else lower(n.call) for n in nodes]
        self.first = [0]
        self.node_of: list[int] = []
        self.shapes: list[Shape | None] = []
        for i, node in enumerate(nodes):
            self.node_of += [i] * len(node.outputs)
            self.shapes += node.outputs
            self.first.append(len(self.node_of))
        self.count = len(self.node_of)
        self.parameters = {self.first[position[id(n)]]: i for i, n in enumerate(graph.parameters)}
        self.same = list(range(self.count))
        self.operands: list[tuple[int, ...]] = []
        self.is_dynamic = bytearray(self.count)
        for i, node in enumerate(nodes):
            read = tuple(self.same[self.first[position[id(v.node)]] + v.index] for v in node.operands)
            self.operands.append(read)
            step = self.steps[i]
            if step is not None and step.identity is not None:
                for j, source in enumerate(step.identity):
                    self.same[self.first[i] + j] = read[source]
            if _has_dynamic_output(node) or any(self.is_dynamic[v] for v in read):
                self.is_dynamic[self.first[i] : self.first[i + 1]] = b"\1" * len(node.outputs)
        self.results = [self.same[self.first[position[id(v.node)]] + v.index] for v in graph.results]
        self.returned = {
            r: self.parameters[self.results[r]] for r, v in enumerate(graph.results) if v.node.is_device_data
        }
        self.result_count = Counter(self.results)
        self.numbers_of: list[int] = []
        total = self.count
        for node in nodes:
            self.numbers_of.append(total)
            total += len(node.numbers)
        self.alive = self._alive()
        self.uses: dict[int, list[int]] = {}
        for i in range(len(nodes)):
            if self.runs(i):
                for v in dict.fromkeys(self.operands[i]):
                    self.uses.setdefault(v, []).append(i)

    def _alive(self) -> bytearray:
        alive = bytearray(len(self.steps))
        for v in self.results:
            alive[self.node_of[v]] = 1
        for i in range(len(alive) - 1, -1, -1):
            step = self.steps[i]
            if step is not None and step.is_random:
                alive[i] = 1
            if alive[i] and step is not None:
                for v in self.operands[i]:
                    alive[self.node_of[v]] = 1
        return alive

    def runs(self, node: int) -> bool:
        """Whether something is called for this node."""
        step = self.steps[node]
        return step is not None and step.identity is None and bool(self.alive[node])

    def outputs_of(self, node: int) -> range:
        """The values that a node makes."""
        return range(self.first[node], self.first[node + 1])

    @property
    def order(self) -> list[int]:
        """The positions of the nodes that run, in the order in which they were made."""
        return [i for i in range(len(self.steps)) if self.runs(i)]

    def may_be_written(self, node: int) -> bool:
        """Whether the node's in-place form computes the same, as far as shapes tell.

        The first operand must have the output's dtype, sizes and strides (so nothing is promoted, broadcast or left in
        another layout) and no two elements in one place. Random numbers are drawn in the order of the layout that the
        trace saw, which is not always the one that a value has here, so they fill new memory.
        """
        step = self.steps[node]
        if step is None or step.in_place is None or step.is_random or not self._writes_first_argument(node, step):
            return False
        for target, out in self.written(node):
            shape = self.shapes[target]
            if shape is None or shape is not self.shapes[out] or self.is_dynamic[target] or self.is_dynamic[out]:
                return False
            if True in shape.symbolic or not is_dense(shape):
                return False
        return True

    def written(self, node: int) -> list[tuple[int, int]]:
        """What the in-place form writes over: pairs of an operand and the output that takes its place."""
        step = self.steps[node]
        count = 0 if step is None else step.writes
        return list(zip(self.operands[node][:count], self.outputs_of(node), strict=False))

    def _writes_first_argument(self, node: int, step: Step) -> bool:
        """Whether the first argument is the first operands, one per output, and no other argument is one of them."""
        first = list(range(step.writes))
        found = list(operand_indices(step.args)) + list(operand_indices(tuple(v for _, v in step.kwargs)))
        return (
            len(self.outputs_of(node)) == step.writes
            and list(operand_indices(step.args[:1])) == first
            and sum(i < step.writes for i in found) == step.writes
        )


def _has_dynamic_output(node: Node) -> bool:
    call = node.call
    return isinstance(call.op, OpOverload) and is_dynamic(call.op, call.args, dict(call.kwargs), call.inputs)


_MAY_OVERLAP = frozenset({"as_strided", "broadcast_to", "expand", "expand_as", "unfold"})


class Memory:
    """Which values may share memory, as classes that are merged as nodes are placed in an order.

    Attributes:
        last_use: class → the last time at which one of its values is read.
        holds_parameter, holds_result, overlaps: classes that must not be written to; the last have a view in which two
            elements may be one place in memory, whatever layout the trace saw.
        nbytes: class → the size of its largest value.
    """

    def __init__(self, values: Values, last_use: Sequence[int]) -> None:
        self._parent = list(range(values.count))
        self._values = values
        self.last_use = list(last_use)
        self.holds_parameter = bytearray(values.count)
        self.holds_result = bytearray(values.count)
        self.overlaps = bytearray(values.count)
        self.nbytes = [0 if s is None else s.nbytes for s in values.shapes]
        for v in values.parameters:
            self.holds_parameter[v] = 1
        for v in values.results:
            self.holds_result[v] = 1

    def find(self, value: int) -> int:
        """The class of a value."""
        parent = self._parent
        while parent[value] != value:
            parent[value] = parent[parent[value]]
            value = parent[value]
        return value

    def merge(self, a: int, b: int) -> None:
        """Notes that two values may share memory."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        # The first operand's class stays the root: chains of views stay one step deep.
        self._parent[b] = a
        self.last_use[a] = max(self.last_use[a], self.last_use[b])
        self.holds_parameter[a] |= self.holds_parameter[b]
        self.holds_result[a] |= self.holds_result[b]
        self.overlaps[a] |= self.overlaps[b]
        self.nbytes[a] = max(self.nbytes[a], self.nbytes[b])

    def place(self, node: int) -> None:
        """Notes what the outputs of a node share."""
        step = self._values.steps[node]
        assert step is not None
        read = self._values.operands[node]
        for out, sources in zip(self._values.outputs_of(node), step.aliases, strict=True):
            for source in sources:
                self.merge(read[source], out)
            if step.name in _MAY_OVERLAP:
                self.overlaps[self.find(out)] = 1
