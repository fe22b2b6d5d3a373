"""Which results may be written into the buffers of parameters, and in which order.

The law: an error anywhere leaves every parameter with its value from before. So a program that writes into parameters
has two phases. The first runs everything that allocates memory; the second only writes, in elementwise in-place
operators, so nothing in it can fail. An update fits into the second phase when

- the result is the last of a chain of in-place operators that starts at the parameter, with equal shapes throughout;
- everything that reads the result is in the second phase too;
- everything that reads the parameter's old value (or a view of it) runs before the chain.

For Adam: ``exp_avg`` and the parameter fit. ``exp_avg_sq`` does not: the denominator is computed from its new value and
needs memory, so it would have to run after the write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchport.backends.interpreter.values import Memory, Values

_MAY_ALLOCATE = frozenset({"gelu", "tril", "triu"})
"""Their in-place forms may take memory: for another library's kernel, or to make the operand contiguous."""


@dataclass(frozen=True, slots=True)
class Chain:
    """An update: the nodes that run in place, in order, on the buffers of parameters.

    One parameter, or as many as a ``_foreach`` operator's list is long: it writes into all of them or none.

    Attributes:
        results, parameters: indices of the results, and of the parameters whose buffers they take.
        targets, made: the parameters' values before and after.
        nodes: positions.
    """

    results: tuple[int, ...]
    parameters: tuple[int, ...]
    targets: tuple[int, ...]
    made: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Donation:
    """The second phase: its nodes in order, and which result takes which parameter's buffer."""

    order: tuple[int, ...]
    parameters: Mapping[int, int]


def plan_donation(values: Values, aliases: Mapping[int, int]) -> Donation:
    """The largest second phase that keeps the law, among the aliases that were set up."""
    memory = Memory(values, [0] * values.count)
    for node in values.order:
        memory.place(node)
    by_node: dict[int, dict[int, tuple[int, int]]] = {}
    for result, parameter in sorted(aliases.items()):
        if 0 <= result < len(values.results):
            value = values.results[result]
            by_node.setdefault(values.node_of[value], {})[value] = (result, parameter)
    chains = [c for node, wanted in by_node.items() if (c := _chain(values, memory, node, wanted)) is not None]
    while True:
        chains = _with_users_inside(values, chains)
        ordered, stuck = _ordered(values, memory, chains)
        if stuck is None:
            pairs = {r: p for c in ordered for r, p in zip(c.results, c.parameters, strict=True)}
            return Donation(tuple(n for c in ordered for n in c.nodes), pairs)
        chains.remove(stuck)


def _chain(values: Values, memory: Memory, node: int, wanted: Mapping[int, tuple[int, int]]) -> Chain | None:
    """The chain of in-place operators from parameters to a node's outputs; ``None`` where there is none.

    Args:
        values: the graph's values.
        memory: which of them share memory.
        node: the node.
        wanted: output → result index, parameter index.
    """
    made = tuple(values.outputs_of(node))
    if any(v not in wanted or values.result_count[v] != 1 for v in made):
        return None
    results, parameters = zip(*(wanted[v] for v in made), strict=True)
    value_of = {p: v for v, p in values.parameters.items()}
    targets = tuple(value_of.get(p, -1) for p in parameters)
    if -1 in targets or set(parameters) & set(values.returned.values()):
        return None
    nodes: list[int] = []
    current = made
    while current != targets:
        node = values.node_of[current[0]]
        if tuple(values.outputs_of(node)) != current or not _only_writes(values, memory, node, targets):
            return None
        nodes.append(node)
        current = tuple(target for target, _ in values.written(node))
        if current != targets and any(values.uses[v] != [node] or v in values.result_count for v in current):
            return None
    return Chain(results, parameters, targets, made, tuple(reversed(nodes)))


def _only_writes(values: Values, memory: Memory, node: int, targets: tuple[int, ...]) -> bool:
    """Whether the node's in-place form can run in the second phase: it allocates nothing and cannot fail."""
    step = values.steps[node]
    if step is None or step.is_random or not values.runs(node) or not values.may_be_written(node):
        return False
    if step.name.removeprefix("_foreach_") in _MAY_ALLOCATE or step.writes != len(targets):
        return False
    for (_, out), target in zip(values.written(node), targets, strict=True):
        shape = values.shapes[target]
        # Integer arithmetic can fail half-way (a division by zero), and then the buffer would be spoilt.
        if (
            shape is None
            or values.shapes[out] is not shape
            or not (shape.dtype.is_floating_point or shape.dtype.is_complex)
        ):
            return False
    dtypes = {s.dtype for t in targets if (s := values.shapes[t]) is not None}
    read = values.operands[node]
    groups = [memory.find(v) for v in read[: step.writes]]
    taken = {*groups, *(memory.find(t) for t in targets)}
    if len(set(groups)) != len(groups):
        return False
    for v in read[step.writes :]:
        other = values.shapes[v]
        if other is None or values.is_dynamic[v] or memory.find(v) in taken:
            return False
        # Another dtype is converted through a temporary tensor; one element's worth of it is no allocation to speak of.
        if {other.dtype} != dtypes and other.sizes != ():
            return False
    return True


def _with_users_inside(values: Values, chains: list[Chain]) -> list[Chain]:
    """The chains whose results are read by chains only."""
    while True:
        inside = {n for c in chains for n in c.nodes}
        kept = [c for c in chains if all(u in inside for v in c.made for u in values.uses.get(v, ()))]
        if len(kept) == len(chains):
            return kept
        chains = kept


def _ordered(values: Values, memory: Memory, chains: list[Chain]) -> tuple[list[Chain], Chain | None]:
    """The chains so that each runs after what it reads, and before what it reads is overwritten.

    Returns:
        The chains in order, and ``None``; or, where there is no such order, a chain that is in the way.
    """
    made_by = {v: i for i, c in enumerate(chains) for v in c.made}
    writer = {memory.find(v): i for i, c in enumerate(chains) for v in c.targets}
    if len(writer) != sum(len(c.targets) for c in chains):
        # Two parameters that a view may stand for both: which one a read means is not known.
        return [], chains[-1]
    before: list[set[int]] = [set() for _ in chains]
    for i, chain in enumerate(chains):
        own = {v for n in chain.nodes for v in values.outputs_of(n)} | set(chain.targets)
        for v in {v for n in chain.nodes for v in values.operands[n]} - own:
            if v in made_by:
                before[i].add(made_by[v])
            elif memory.find(v) in writer:
                before[writer[memory.find(v)]].add(i)
    ordered: list[int] = []
    placed: set[int] = set()
    while len(ordered) < len(chains):
        ready = [i for i in range(len(chains)) if i not in placed and before[i] <= placed]
        if not ready:
            return [], next(c for i, c in reversed(list(enumerate(chains))) if i not in placed)
        ordered += ready
        placed.update(ready)
    return [chains[i] for i in ordered], None
