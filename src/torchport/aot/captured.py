"""What is known of a captured method. Loading a file needs this, and not torch's exporter, which is slow to import."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torchport.ir.graph import Graph
from torchport.ir.node import Node

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that may vary: that of one dimension of one input.

    Attributes:
        leaf: which of the flat inputs.
        dim: which of its dimensions; ``None`` where the input is a whole number itself.
        low, high: the range that the capture allows; ``None`` for no upper end.
    """

    leaf: int
    dim: int | None
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Constant:
    """A leaf of the inputs or outputs that is no tensor: the value that it had at the capture."""

    value: Any


class Traced(Protocol):
    """A graph and what it was traced as, which is what a plan is made of."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    @property
    def graph(self) -> Graph:
        """The graph."""

    @property
    def module(self) -> fx.GraphModule:
        """What it was taken from."""

    @property
    def made(self) -> Mapping[fx.Node, Node]:
        """The node of the graph that each node of the module became."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A method as a graph.

    Attributes:
        name: the method's.
        graph: parameters are the tensors among ``arguments``, in order; then numbers.
        arguments: for each parameter of the graph, ``("user", leaf)`` or ``("weight", name)``.
        results: for each result of the graph ``("user", leaf)``, ``("state", weight's name)`` or ``("input", leaf)``
            for an input that the method writes to.
        inputs: for each flat input its dtype and sizes (a text for a symbol), or the constant that it has to be.
        outputs: for each flat output ``None`` for a tensor, an expression, or the constant that it is.
        symbols: by name.
        in_spec, out_spec: how inputs ``(args, kwargs)`` and outputs are nested.
        parameters: of the method's signature.
        weights: every weight and state, by name in the module; those that no method uses too, so that the module's
            ``state_dict`` fits.
        passing: the names of those that are not in the module's ``state_dict``: constants, and buffers that are not
            persistent.
        state: the names of those that the method changes.
        training: whether the module was in training mode.
        program, made: what it was captured as, and the node of the graph that each of its nodes became.
    """

    name: str
    graph: Graph
    arguments: list[tuple[str, Any]]
    results: list[tuple[str, Any]]
    inputs: list[Any]
    outputs: list[Any]
    symbols: dict[str, Symbol]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    parameters: list[inspect.Parameter]
    weights: dict[str, torch.Tensor]
    passing: frozenset[str]
    state: frozenset[str]
    training: bool
    program: ExportedProgram
    made: dict[fx.Node, Node]

    @property
    def module(self) -> fx.GraphModule:
        """The module of the exported program."""
        module: fx.GraphModule = self.program.graph_module
        return module
