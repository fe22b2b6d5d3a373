"""A lowered method as data: what is saved, and what is needed to call it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from torchport.aot.captured import Capture, Symbol
from torchport.aot.nesting import opened
from torchport.aot.plan import Plan
from torchport.ir.graph import Graph
from torchport_runtime.manifest import Refusal


@dataclass(frozen=True, slots=True)
class Part:
    """A part that a backend runs.

    Attributes:
        backend: the backend's name.
        payload: what the backend made of the graph.
        graph: the graph itself; ``None`` where it was not saved.
        node_count: how many operators it has.
    """

    backend: str
    payload: bytes | memoryview
    graph: Graph | None
    node_count: int


@dataclass(frozen=True, slots=True)
class Method:
    """A lowered method. The attributes are those of :class:`~torchport.aot.capture.Capture`, and:

    Attributes:
        graph: what is called in order: ``port.partition`` nodes for the parts.
        parts: by name.
        options: what the backend was told.
        refusals: which nodes the backend refused, and why.
    """

    name: str
    graph: Graph
    parts: Mapping[str, Part]
    arguments: list[tuple[str, Any]]
    results: list[tuple[str, Any]]
    inputs: list[Any]
    outputs: list[Any]
    symbols: Mapping[str, Symbol]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    parameters: list[inspect.Parameter]
    training: bool
    options: Mapping[str, Any] | None
    refusals: tuple[Refusal, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Method:
        # Nothing changes a method, and a payload is too large to have twice.
        return self


def method_of(
    capture: Capture, plan: Plan, backend: str, payloads: Mapping[str, bytes], options: Mapping[str, Any] | None
) -> Method:
    """The method of a capture.

    Args:
        capture: the method as a graph.
        plan: how it is cut.
        backend: the name of the backend.
        payloads: what the backend made of each part, by the part's name.
        options: the backend's options.
    """
    parts = {
        name: Part(backend, payloads[name], graph, sum(not n.is_device_data for n in graph.nodes))
        for name, graph in plan.parts.items()
    }
    graph, inner = opened(plan.graph, "inner")
    return Method(
        capture.name,
        graph,
        {**parts, **inner},
        capture.arguments,
        capture.results,
        capture.inputs,
        capture.outputs,
        capture.symbols,
        capture.in_spec,
        capture.out_spec,
        capture.parameters,
        capture.training,
        options,
        tuple(Refusal(r.node.call.name, str(r.node.location or ""), r.reason) for r in plan.refusals),
    )
