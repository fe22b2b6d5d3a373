"""The trace: every deferred operation since the last barrier, in order, with a hash that is built as it grows.

Appending an operation costs well under a microsecond, because nothing is looked up later: operands are numbered when
they are used, the hash of the whole trace is one multiplication behind, and a launch reads it off. Nodes that are dead
by then are in the hash too; they are the same in every repetition of a program.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from threading import get_ident
from typing import Any

from torchport.backend import LazyTensor
from torchport.ir.call import Call
from torchport.ir.location import Location
from torchport.ir.node import Node, Value

LOCK = threading.RLock()
"""Held while anything of a trace or of a lazy tensor is read or changed: kernels may run on several threads."""


_serials = itertools.count(1)


class Trace:
    """Pending operations of one virtual device.

    Attributes:
        serial: its number. Nodes and lazy tensors name a trace by it: a reference would make a cycle, and what a
            launched trace holds would stay until the garbage collector comes by.
        nodes: the operations and, at their first use, the device-data leaves.
        leaves: the value of each leaf, in order: the parameters.
        hash: 64 bits over the structure of ``nodes``; equal in every process.
        written: weak references to the lazy tensors that were written since the last barrier.
        operations: how many of the nodes are no leaves.
        has_random: whether any node draws random numbers.
        switches: how many nodes there were when another thread began to record, and its identifier.
    """

    __slots__ = (
        *("_next_id", "_thread", "has_random", "hash", "leaves", "nodes", "operations", "serial", "switches"),
        "written",
    )

    def __init__(self) -> None:
        self.serial = next(_serials)
        self.written: list[weakref.ref[LazyTensor]] = []
        self._clear()

    def _clear(self) -> None:
        self.nodes: list[Node] = []
        self.leaves: list[Value] = []
        self.hash = 0
        self.operations = 0
        self.has_random = False
        self.switches: list[tuple[int, int]] = []
        self._next_id = 0
        self._thread = 0

    def add(
        self,
        builder: Any,
        call: Call,
        operands: tuple[Value, ...],
        numbers: tuple[Any, ...] = (),
        location: Location = None,
    ) -> Node:
        """Appends an operation; returns its node."""
        ids = []
        for value in operands:
            used = value.node
            if used.trace != self.serial:
                self._add_leaf(value)
            ids.append(used.id + value.index)
        node: Node = builder.make_generic(call, operands, numbers, location)
        self._append(node, ids, get_ident())
        return node

    def add_node(self, node: Node) -> Node:
        """Appends a node that a builder has made (a cast, an expand, a scalar)."""
        return self._add_again(node, get_ident())

    def _add_again(self, node: Node, thread: int) -> Node:
        ids = []
        for value in node.operands:
            if value.node.trace != self.serial:
                self._add_leaf(value)
            ids.append(value.node.id + value.index)
        self._append(node, ids, thread)
        return node

    def _append(self, node: Node, ids: list[int], thread: int) -> None:
        if thread != self._thread:
            self._thread = thread
            self.switches.append((len(self.nodes), thread))
        call = node.call
        node.trace = self.serial
        node.id = self._next_id
        self._next_id += call.width
        self.hash = hash((self.hash, call.digest, *ids))
        self.nodes.append(node)
        self.operations += 1
        if call.is_random:
            self.has_random = True

    def _add_leaf(self, value: Value) -> None:
        node = value.node
        assert node.is_device_data, f"{node!r} belongs to a trace that was launched"
        node.trace = self.serial
        node.id = self._next_id
        self._next_id += 1
        self.hash = hash((self.hash, node.call.digest))
        self.nodes.append(node)
        self.leaves.append(value)

    def write(self, tensor: LazyTensor, value: Value | None) -> None:
        """Gives a lazy tensor new contents."""
        before = tensor.value
        if before is not None and before.node.data is not None:
            tensor.previous = before
        tensor.value = value
        tensor.views = None
        tensor.host = None
        if tensor.trace != self.serial:
            tensor.trace = self.serial
            self.written.append(weakref.ref(tensor))

    # -- several threads ----------------------------------------------------------------------------------------

    def operations_with_threads(self) -> Iterator[tuple[Node, int]]:
        """The operations in order, each with the thread that recorded it."""
        begins = dict(self.switches)
        thread = 0
        for i, node in enumerate(self.nodes):
            thread = begins.get(i, thread)
            if not node.is_device_data:
                yield node, thread

    def split(self, staying: frozenset[int]) -> Trace:
        """Takes out all operations but those that stay, given by Python's ids; no two of both depend on each other.

        Both have the nodes, numbers and hash that they would have if the others had never been recorded.
        """
        operations = list(self.operations_with_threads())
        taken = Trace()
        for leaf in self.leaves:
            leaf.node.trace = 0
        self._clear()
        for trace, stays in ((taken, False), (self, True)):  # a leaf of both is numbered in the one that goes on
            for node, thread in operations:
                if (id(node) in staying) is stays:
                    trace._add_again(node, thread)
        written, self.written = self.written, []
        for reference in written:
            tensor = reference()
            if tensor is not None:
                value = tensor.value
                owner = taken if value is not None and value.node.trace == taken.serial else self
                tensor.trace = owner.serial
                owner.written.append(reference)
        return taken

    def absorb(self, taken: Trace) -> None:
        """Takes back what was taken out and not launched."""
        operations = list(taken.operations_with_threads())
        for leaf in taken.leaves:
            if leaf.node.trace == taken.serial:
                leaf.node.trace = 0
        for node, thread in operations:
            self._add_again(node, thread)
        for reference in taken.written:
            tensor = reference()
            if tensor is not None:
                tensor.trace = self.serial
                self.written.append(reference)
