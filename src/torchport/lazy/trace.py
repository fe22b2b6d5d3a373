"""The trace: every deferred operation since the last barrier, in order, with a hash that is built as it grows.

Appending an operation costs well under a microsecond, because nothing is looked up later: operands are numbered when
they are used, the hash of the whole trace is one multiplication behind, and a launch reads it off. Nodes that are dead
by then are in the hash too; they are the same in every repetition of a program.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from torchport.backend import LazyTensor
from torchport.ir.call import Call
from torchport.ir.location import Location
from torchport.ir.node import Node, Value

LOCK = threading.RLock()
"""Held while anything of a trace or of a lazy tensor is read or changed: kernels may run on several threads."""


class Trace:
    """Pending operations of one virtual device.

    Attributes:
        nodes: the operations and, at their first use, the device-data leaves.
        leaves: the value of each leaf, in order: the parameters.
        hash: 64 bits over the structure of ``nodes``; equal in every process.
        written: weak references to the lazy tensors that were written since the last barrier.
        operations: how many of the nodes are no leaves.
        has_random: whether any node draws random numbers.
    """

    __slots__ = ("_next_id", "has_random", "hash", "leaves", "nodes", "operations", "written")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.leaves: list[Value] = []
        self.hash = 0
        self.written: list[weakref.ref[LazyTensor]] = []
        self.operations = 0
        self.has_random = False
        self._next_id = 0

    def add(
        self,
        builder: Any,
        call: Call,
        operands: tuple[Value, ...],
        numbers: tuple[Any, ...] = (),
        location: Location = None,
    ) -> Node:
        """Appends an operation; returns its node."""
        key = [self.hash, call.digest]
        for value in operands:
            node = value.node
            if node.trace is not self:
                self._add_leaf(value)
                key[0] = self.hash
            key.append(node.id + value.index)
        node = builder.make_generic(call, operands, numbers, location)
        node.trace = self
        node.id = self._next_id
        self._next_id += len(call.outputs) or 1
        self.hash = hash(tuple(key))
        self.nodes.append(node)
        self.operations += 1
        if call.is_random:
            self.has_random = True
        return node  # type: ignore[no-any-return]

    def add_node(self, node: Node) -> Node:
        """Appends a node that a builder has made (a cast, an expand, a scalar)."""
        key = [self.hash, node.call.digest]
        for value in node.operands:
            if value.node.trace is not self:
                self._add_leaf(value)
                key[0] = self.hash
            key.append(value.node.id + value.index)
        node.trace = self
        node.id = self._next_id
        self._next_id += len(node.call.outputs) or 1
        self.hash = hash(tuple(key))
        self.nodes.append(node)
        self.operations += 1
        return node

    def _add_leaf(self, value: Value) -> None:
        node = value.node
        assert node.is_device_data, f"{node!r} belongs to a trace that was launched"
        node.trace = self
        node.id = self._next_id
        self._next_id += 1
        self.hash = hash((self.hash, node.call.digest))
        self.nodes.append(node)
        self.leaves.append(value)

    def write(self, tensor: LazyTensor, value: Value | None) -> None:
        """Gives a lazy tensor new contents."""
        tensor.value = value
        tensor.views = None
        tensor.host = None
        if tensor.trace is not self:
            tensor.trace = self
            self.written.append(weakref.ref(tensor))
