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
from torchport.ir.shape import Shape

_MAY_ALLOCATE = frozenset({"gelu", "tril", "triu"})
"""Their in-place forms may take memory: for another library's kernel, or to make the operand contiguous."""


@dataclass(frozen=True, slots=True)
class Chain:
    """An update: the nodes that run in place, in order, on the buffer of a parameter."""

    result: int
    parameter: int
    target: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Donation:
    """The second phase: its nodes in order, and which result takes which parameter's buffer."""

    order: tuple[int, ...]
    parameters: Mapping[int, int]


def plan_donation(values: Values, aliases: Mapping[int, int]) -> Donation:
    """The largest second phase that keeps the law, among the aliases that were set up."""
    target_of = {p: v for v, p in values.parameters.items()}
    memory = Memory(values, [0] * values.count)
    for node in values.order:
        memory.place(node)
    chains = [
        chain
        for result, parameter in sorted(aliases.items())
        if parameter in target_of
        and (chain := _chain(values, memory, result, parameter, target_of[parameter])) is not None
    ]
    while True:
        chains = _with_users_inside(values, chains)
        ordered, stuck = _ordered(values, memory, chains)
        if stuck is None:
            return Donation(tuple(n for c in ordered for n in c.nodes), {c.result: c.parameter for c in ordered})
        chains.remove(stuck)


def _chain(values: Values, memory: Memory, result: int, parameter: int, target: int) -> Chain | None:
    """The chain of in-place operators from the parameter to the result; ``None`` where there is none."""
    if not 0 <= result < len(values.results):
        return None
    value, shape = values.results[result], values.shapes[target]
    if parameter in values.returned.values() or values.result_count[value] != 1 or shape is None:
        return None
    if not (shape.dtype.is_floating_point or shape.dtype.is_complex):
        return None  # integer arithmetic can fail half-way (a division by zero), and then the buffer would be spoilt
    nodes: list[int] = []
    while value != target:
        node = values.node_of[value]
        if not values.runs(node) or not _only_writes(values, memory, node, shape, target):
            return None
        nodes.append(node)
        value = values.operands[node][0]
        if value != target and (values.uses[value] != [node] or value in values.result_count):
            return None
    return Chain(result, parameter, target, tuple(reversed(nodes)))


def _only_writes(values: Values, memory: Memory, node: int, shape: Shape, target: int) -> bool:
    """Whether the node's in-place form can run in the second phase: it allocates nothing and cannot fail."""
    step = values.steps[node]
    if step is None or step.is_random or not values.may_be_written(node):
        return False
    if values.shapes[values.first[node]] is not shape or step.name in _MAY_ALLOCATE:
        return False
    first, *others = values.operands[node]
    for v in others:
        other = values.shapes[v]
        if other is None or values.is_dynamic[v] or memory.find(v) in (memory.find(target), memory.find(first)):
            return False
        # Another dtype is converted through a temporary tensor; one element's worth of it is no allocation to speak of.
        if other.dtype is not shape.dtype and other.sizes != ():
            return False
    return True


def _with_users_inside(values: Values, chains: list[Chain]) -> list[Chain]:
    """The chains whose results are read by chains only."""
    while True:
        inside = {n for c in chains for n in c.nodes}
        kept = [c for c in chains if all(u in inside for u in values.uses.get(values.results[c.result], ()))]
        if len(kept) == len(chains):
            return kept
        chains = kept


def _ordered(values: Values, memory: Memory, chains: list[Chain]) -> tuple[list[Chain], Chain | None]:
    """The chains so that each runs after what it reads, and before what it reads is overwritten.

    Returns:
        The chains in order, and ``None``; or, where there is no such order, a chain that is in the way.
    """
    made_by = {values.results[c.result]: i for i, c in enumerate(chains)}
    writer = {memory.find(c.target): i for i, c in enumerate(chains)}
    before: list[set[int]] = [set() for _ in chains]
    for i, chain in enumerate(chains):
        own = {values.first[n] for n in chain.nodes} | {chain.target}
        for v in {v for n in chain.nodes for v in values.operands[n]} - own:
            if v in made_by:
                before[i].add(made_by[v])
            elif memory.find(v) in writer:
                before[writer[memory.find(v)]].add(i)
    if len(writer) != len(chains):
        # Two parameters that a view may stand for both: which one a read means is not known.
        return [], chains[-1]
    ordered: list[int] = []
    placed: set[int] = set()
    while len(ordered) < len(chains):
        ready = [i for i in range(len(chains)) if i not in placed and before[i] <= placed]
        if not ready:
            return [], next(c for i, c in reversed(list(enumerate(chains))) if i not in placed)
        ordered += ready
        placed.update(ready)
    return [chains[i] for i in ordered], None
