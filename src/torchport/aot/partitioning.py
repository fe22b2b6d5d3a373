"""Which nodes go to the backend, in which parts, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from torchport.aot.captured import Traced
from torchport.aot.nesting import is_lowered_call
from torchport.aot.plan import Plan, Refusal
from torchport.backend import Support
from torchport.errors import UnsupportedNodesError
from torchport.ir.graph import Graph
from torchport.ir.node import Node
from torchport.ir.partition import cut


def plan_method(
    capture: Traced,
    supports: Callable[[Node], Support],
    partition: bool,
    backend: str,
    submodules: Sequence[str] = (),
    kept_whole: Callable[[Graph], Sequence[Sequence[Node]]] = lambda graph: (),
) -> Plan:
    """The plan of a captured method.

    Args:
        capture: the method.
        supports: the backend's answer for a node.
        partition: whether what is refused may run in the interpreter.
        backend: its name, for messages.
        submodules: dotted names, where only these are to be lowered.
        kept_whole: the groups of nodes that the backend runs in one part or not at all.

    Raises:
        UnsupportedNodesError: nodes are refused, and ``partition`` is off; all of them are listed.
    """
    owner = _owners(capture, submodules)
    groups = [*quantized_groups(capture.graph), *map(list, kept_whole(capture.graph))]
    refusals = _refusals(capture.graph, supports, owner if submodules else None, groups)
    parts = _parts(capture, refusals, owner, submodules)
    while cut_groups := _cut_groups(groups, parts):
        for group in cut_groups:
            reason = "its group would be in several parts, and the backend runs it whole or not at all"
            refusals += [Refusal(node, reason) for node in group]
        parts = _parts(capture, refusals, owner, submodules)
    wanted = [r for r in refusals if (not submodules or id(r.node) in owner) and not is_lowered_call(r.node)]
    if wanted and not partition:
        raise UnsupportedNodesError(backend, capture.name, list(map(str, wanted)), _size(capture.graph))
    position = {id(n): i for i, n in enumerate(capture.graph.nodes)}
    parts.sort(key=lambda nodes: position[id(nodes[0])])
    graph, graphs = cut(capture.graph, parts, [f"p{i}" for i in range(len(parts))])
    return Plan(graph, graphs, refusals)


def _parts(
    capture: Traced, refusals: Sequence[Refusal], owner: Mapping[int, str], submodules: Sequence[str]
) -> list[list[Node]]:
    refused = {id(r.node) for r in refusals}
    if not submodules:
        return _propose(capture, refused)
    parts: list[list[Node]] = []
    for one in submodules:  # a part of one submodule never grows into another
        parts += _propose(capture, refused | {n for n, name in owner.items() if name != one})
    return parts


def _cut_groups(groups: Sequence[list[Node]], parts: Sequence[list[Node]]) -> list[list[Node]]:
    """The groups of which some nodes are in one part and some are not."""
    part_of = {id(node): i for i, part in enumerate(parts) for node in part}
    return [group for group in groups if len({part_of.get(id(node)) for node in group}) > 1]


def _owners(capture: Traced, submodules: Sequence[str]) -> dict[int, str]:
    """Which of the submodules made a node, by the node's id."""
    found: dict[int, str] = {}
    for fx_node, node in capture.made.items():
        for path, _ in (fx_node.meta.get("nn_module_stack") or {}).values():
            for name in submodules:
                if path == name or path.startswith(f"{name}."):
                    found[id(node)] = name
    return found


def _size(graph: Graph) -> int:
    return sum(not n.is_device_data for n in graph.nodes)


def _refusals(
    graph: Graph,
    supports: Callable[[Node], Support],
    owner: dict[int, str] | None,
    groups: Sequence[Sequence[Node]],
) -> list[Refusal]:
    found: dict[int, Refusal] = {}
    for node in graph.nodes:
        if owner is not None and id(node) not in owner and not node.is_device_data:
            found[id(node)] = Refusal(node, "it is in none of the submodules that are lowered")
        elif is_lowered_call(node):
            found[id(node)] = Refusal(node, "it is a lowered module, which keeps its own backend")
        elif not node.is_device_data:
            answer = supports(node)
            if not answer:
                found[id(node)] = Refusal(node, answer.reason or "the backend gives no reason")
    for group in groups:
        first = next((found[id(n)] for n in group if id(n) in found), None)
        if first is not None:
            for node in group:
                reason = f"it stays with {first.node.call.name}, which is refused: {first.reason}"
                found.setdefault(id(node), Refusal(node, reason))
    return [found[id(n)] for n in graph.nodes if id(n) in found]


def quantized_groups(graph: Graph) -> list[list[Node]]:
    """Nodes that stay whole: an operator, the dequantizations that it reads and the quantization of its result."""
    readers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for value in node.operands:
            readers.setdefault(id(value.node), []).append(node)
    groups = []
    for node in graph.nodes:
        before = [v.node for v in node.operands if "::dequantize_per" in _schema_name(v.node)]
        after = [n for n in readers.get(id(node), []) if "::quantize_per" in _schema_name(n)]
        if before and "quantize_per" not in _schema_name(node):
            groups.append([*before, node, *after])
    return groups


def _schema_name(node: Node) -> str:
    schema = getattr(node.op, "_schema", None)
    return "" if schema is None else str(schema.name)


def _propose(capture: Traced, refused: set[int]) -> list[list[Node]]:
    """Convex parts by PyTorch's own partitioner, each in the graph's order; parts without an operator are dropped."""

    class Supported(OperatorSupportBase):
        def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
            own = capture.made.get(node)
            # Integers that follow from sizes are in no graph of ours, and tie nothing together.
            return node.op == "call_function" and (own is None or id(own) not in refused)

    module = capture.module
    partitioner = CapabilityBasedPartitioner(module, Supported(), allows_single_node_partition=True)
    position = {id(n): i for i, n in enumerate(capture.graph.nodes)}
    parts = []
    for proposed in partitioner.propose_partitions():
        nodes = {id(capture.made[n]): capture.made[n] for n in proposed.nodes if n in capture.made}
        if nodes:
            parts.append(sorted(nodes.values(), key=lambda n: position[id(n)]))
    return parts
