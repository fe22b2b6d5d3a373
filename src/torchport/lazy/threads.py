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
    if len(trace.switches) < 2:
        return frozenset()
    me = threading.get_ident()
    # A thread that Python did not start, as those of the autograd engine, is in no list, or as a dummy.
    live = {t.ident for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}
    others = {thread for _, thread in trace.switches} & live - {me}
    if not others or me not in live:
        return frozenset()
    group: dict[int, int] = {}  # operation → the first operation that it depends on, by way of others of its group

    def first(node: int) -> int:
        while group[node] != node:
            group[node] = node = group[group[node]]
        return node

    owners: dict[int, set[int]] = {}
    operations = list(trace.operations_with_threads())
    for node, _ in operations:
        group[id(node)] = id(node)
        for value in node.operands:
            if not value.node.is_device_data:
                group[first(id(value.node))] = first(id(node))
    for node, thread in operations:
        owners.setdefault(first(id(node)), set()).add(thread)
    kept = {g for g, threads in owners.items() if me not in threads and threads & others}
    if wanted is not None and id(wanted) in group:
        kept.discard(first(id(wanted)))
    return frozenset(id(node) for node, _ in operations if first(id(node)) in kept)
