"""Lowering: from nodes of the IR to a computation that a backend can compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchport.backend.computation import Computation, SyncCause
from torchport.backend.data import BackendData
from torchport.backend.device import BackendDevice
from torchport.ir.builder import IrBuilder
from torchport.ir.graph import Graph
from torchport.ir.node import Node, Value


class LoweringContext:
    """Takes nodes, one by one or all at once, and builds a :class:`Computation`.

    This one keeps the IR as it is, for backends that compile a whole graph; a backend with a builder of its own
    overrides :meth:`lower` and :meth:`build`.

    Args:
        name: the computation's name.
        device: the concrete device it is for.
        post_order: nodes to lower at once, operands first.
        emission_map: what is emitted already, node → the backend's object for it; such nodes are not lowered again.
    """

    def __init__(
        self,
        name: str,
        device: BackendDevice,
        post_order: Sequence[Node] = (),
        emission_map: dict[Node, Any] | None = None,
    ) -> None:
        self.name = name
        self.device = device
        self.devices: Sequence[BackendDevice] = (device,)
        self.cause = SyncCause.BARRIER
        self.emission_map: dict[Node, Any] = dict(emission_map or {})
        self._emitted_elsewhere = frozenset(self.emission_map)
        self._nodes: list[Node] = []
        self._results: list[Value] = []
        self._aliases: dict[int, int] = {}
        self._parameters: dict[int, Node] = {}
        self._parameter_count = 0
        for node in post_order:
            self.lower(node)

    def lower(self, node: Node) -> None:
        """Lowers one node; its operands must have been lowered before.

        Raises:
            ValueError: an operand was not lowered yet.
        """
        if node in self.emission_map:
            return
        for value in node.operands:
            if value.node not in self.emission_map:
                raise ValueError(f"{node!r} is lowered before its operand {value.node!r}; pass nodes operands first")
        if node.is_device_data:
            self._parameters.setdefault(id(node if node.data is None else node.data), node)
            self._parameter_count += 1
        self.emission_map[node] = node
        self._nodes.append(node)

    def add_result(self, value: Value) -> int:
        """Asks for a value; returns its index among the results. The node is lowered when it was not yet."""
        if value.node not in self.emission_map:
            self.lower(value.node)
        self._results.append(value)
        return len(self._results) - 1

    def get_parameter(self, data: BackendData) -> Value:
        """The value that stands for this data, a parameter; made at the first call."""
        node = self._parameters.get(id(data))
        if node is None:
            node = IrBuilder().make_device_data(data)
            self.lower(node)
        return Value(node)

    @property
    def parameters_data(self) -> list[BackendData]:
        """The data of the parameters, in parameter order."""
        return [n.data for n in self._nodes if n.is_device_data]

    def set_up_alias(self, result: int, parameter: int) -> None:
        """Lets result number ``result`` take the buffer of parameter number ``parameter``.

        Raises:
            IndexError: there is no such result or parameter.
            ValueError: one of them is aliased already.
        """
        if not 0 <= result < len(self._results):
            raise IndexError(f"set_up_alias: there is no result {result}, there are {len(self._results)}")
        if not 0 <= parameter < self._parameter_count:
            raise IndexError(f"set_up_alias: there is no parameter {parameter}, there are {self._parameter_count}")
        if result in self._aliases or parameter in self._aliases.values():
            raise ValueError(f"set_up_alias({result}, {parameter}): one of them is aliased already")
        self._aliases[result] = parameter

    def build(self) -> Computation:
        """The computation of what was lowered and asked for.

        Raises:
            ValueError: a node or a result needs a node of the ``emission_map`` that was given; only a context with a
                builder of its own knows what that was emitted as.
        """
        elsewhere = self._emitted_elsewhere
        if elsewhere:
            needed = [v for n in self._nodes for v in n.operands if v.node in elsewhere]
            needed += [v for v in self._results if v.node in elsewhere]
            if needed:
                raise ValueError(
                    f"build: {needed[0]!r} was emitted elsewhere, according to the emission map; a LoweringContext "
                    "that keeps the IR cannot refer to it. Lower the node here, or override build()"
                )
        return Computation(self.name, Graph(self._nodes, self._results), self.devices, self._aliases, self.cause)
