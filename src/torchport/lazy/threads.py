"""Several threads that record into one trace: a launch takes what belongs to the thread that asks for it.

Else a barrier of one thread would cut the steps of the others where they happen to be, and each way in which their
operations mix would be another graph to compile.

Operations that depend on each other belong together, whoever recorded them: backward passes run on a thread of
PyTorch's autograd engine, for any of the others.
"""

from __future__ import annotations

import threading

from torchport.ir.node import Node
from torchport.lazy.trace import Trace


def of_other_threads(trace: Trace, wanted: Node | None) -> frozenset[int]:
    """The ids (Python's) of the operations that other live threads go on with, and this one has no part in.

    Args:
        trace: what is pending.
        wanted: a node that is launched in any case, with all that belongs to it.
    """
    me = threading.get_ident()
    recorders = {thread for _, thread in trace.switches} - {me}
    if not recorders:
        return frozenset()
    # A thread that Python did not start, as those of the autograd engine, is in no list, or as a dummy.
    live = {t.ident for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}
    others = recorders & live
    if not others or me not in live:
        return frozenset()
    operations = list(trace.operations_with_threads())
    groups = _groups([node for node, _ in operations])
    owners: dict[int, set[int]] = {}
    for (_, thread), group in zip(operations, groups, strict=True):
        owners.setdefault(group, set()).add(thread)
    kept = {g for g, threads in owners.items() if me not in threads and threads & others}
    for (node, _), group in zip(operations, groups, strict=True):
        if node is wanted:
            kept.discard(group)
    if trace.has_random:
        _draw_in_order([node for node, _ in operations], groups, kept)
    return frozenset(id(node) for (node, _), group in zip(operations, groups, strict=True) if group in kept)


def _groups(operations: list[Node]) -> list[int]:
    """For each operation a number, the same for those that depend on each other."""
    place = {id(node): i for i, node in enumerate(operations)}
    parent = list(range(len(operations)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    for i, node in enumerate(operations):
        for value in node.operands:
            if not value.node.is_device_data:
                parent[root(place[id(value.node)])] = root(i)
    return [root(i) for i in range(len(operations))]


def _draw_in_order(operations: list[Node], groups: list[int], kept: set[int]) -> None:
    """Keeps nothing that draws random numbers before something that is launched: numbers come in the trace's order."""
    draws = [group for node, group in zip(operations, groups, strict=True) if node.call.is_random]
    launched = False
    for group in reversed(draws):
        if group not in kept:
            launched = True
        elif launched:
            kept.discard(group)
            _draw_in_order(operations, groups, kept)  # it may draw later on too
            return
