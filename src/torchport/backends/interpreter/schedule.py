"""The order in which a graph runs, which steps run in place, and which results need a copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchport.backends.interpreter.donation import Donation
from torchport.backends.interpreter.values import Memory, Values


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a program does.

    Attributes:
        order: positions of the nodes to run, in order.
        final: the nodes of the second phase, which write into parameters' buffers.
        in_place: the nodes that run in their in-place form.
        cloned: results that would share memory with a parameter, another result or a larger buffer.
        returned: result index → parameter index: the argument itself is the result.
        donated: result index → parameter index: the result has the parameter's buffer.
    """

    order: tuple[int, ...]
    final: tuple[int, ...]
    in_place: frozenset[int]
    cloned: frozenset[int]
    returned: Mapping[int, int]
    donated: Mapping[int, int]

    def as_json(self) -> dict[str, Any]:
        """It as JSON has it."""
        return {
            "order": self.order,
            "final": self.final,
            "in_place": sorted(self.in_place),
            "cloned": sorted(self.cloned),
            "returned": list(self.returned.items()),
            "donated": list(self.donated.items()),
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Schedule:
        """The schedule that :meth:`as_json` gave."""
        return cls(
            tuple(found["order"]),
            tuple(found["final"]),
            frozenset(found["in_place"]),
            frozenset(found["cloned"]),
            dict(found["returned"]),
            dict(found["donated"]),
        )


NO_DONATION = Donation((), {})


def schedule(values: Values, donation: Donation = NO_DONATION) -> Schedule:
    """The schedule of a graph.

    A step runs in place where nothing can see it: its first operand is fresh memory of an earlier step, is no result,
    and neither it nor anything that shares its memory is read again.
    """
    final = set(donation.order)
    order = [n for n in values.order if n not in final] + list(donation.order)
    last_use = [-1] * values.count
    for time, node in enumerate(order):
        for v in values.operands[node]:
            last_use[v] = time
    memory = Memory(values, last_use)
    in_place = set()
    for time, node in enumerate(order):
        if node in final or _dies_here(values, memory, node, time):
            in_place.add(node)
            for target, out in values.written(node):
                memory.merge(target, out)
        else:
            memory.place(node)
    cloned = set()
    owned = set()
    for r, v in enumerate(values.results):
        if r in values.returned or r in donation.parameters:
            continue
        group = memory.find(v)
        if memory.holds_parameter[group] or group in owned or _is_part(values, memory, v):
            cloned.add(r)
        else:
            owned.add(group)
    return Schedule(
        tuple(order[: len(order) - len(final)]),
        donation.order,
        frozenset(in_place),
        frozenset(cloned),
        values.returned,
        donation.parameters,
    )


def _dies_here(values: Values, memory: Memory, node: int, time: int) -> bool:
    """Whether the node may write its outputs over its first operands."""
    if not values.may_be_written(node):
        return False
    read = values.operands[node]
    for i, (target, _) in enumerate(values.written(node)):
        group = memory.find(target)
        if memory.holds_parameter[group] or memory.holds_result[group] or memory.overlaps[group]:
            return False
        if memory.last_use[group] > time or any(memory.find(v) == group for v in read[:i] + read[i + 1 :]):
            return False
    return True


def _is_part(values: Values, memory: Memory, value: int) -> bool:
    """Whether the value may be a part of a larger buffer, which it would keep alive."""
    shape = values.shapes[value]
    node = values.node_of[value]
    step = values.steps[node]
    if shape is None or step is None or not step.aliases[value - values.first[node]]:
        return False
    size_varies = values.is_dynamic[value] or any(shape.symbolic)
    return bool(size_varies) or shape.nbytes < memory.nbytes[memory.find(value)]
