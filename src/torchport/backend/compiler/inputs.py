"""What a compiled program takes: tensors, then numbers by kind in vectors, then what was drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchport.backend.compiler.draws import draw_graph, drawn_shapes
from torchport.backend.compiler.numbers import can_be_input, is_input
from torchport.ir.graph import Graph
from torchport.ir.shape import Shape


@dataclass(frozen=True, slots=True)
class Inputs:
    """How the arguments of a graph become the inputs of its program.

    Attributes:
        tensors: the shapes of the graph's parameters, which come first.
        floats, integers: positions among the graph's numbers; each kind that there is, is one vector input (float64,
            int64; a bool is an integer).
        constants: position among the graph's numbers → the value that the program was compiled for.
        draws: the graph that draws random numbers; each of its results is an input.
        drawn_with: positions among the graph's numbers of those that ``draws`` takes.
    """

    tensors: tuple[Shape, ...]
    floats: tuple[int, ...]
    integers: tuple[int, ...]
    constants: Mapping[int, Any]
    draws: Graph | None
    drawn_with: tuple[int, ...]

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of the program's inputs."""
        vectors = [Shape(torch.float64, (len(self.floats),))] if self.floats else []
        vectors += [Shape(torch.int64, (len(self.integers),))] if self.integers else []
        return [*self.tensors, *vectors, *drawn_shapes(self.draws)]

    def vectors(self, numbers: Sequence[Any]) -> list[torch.Tensor]:
        """The vector inputs for the numbers of a graph."""
        made = []
        if self.floats:
            made.append(torch.tensor([numbers[i] for i in self.floats], dtype=torch.float64))
        if self.integers:
            made.append(torch.tensor([int(numbers[i]) for i in self.integers], dtype=torch.int64))
        return made

    def fit(self, numbers: Sequence[Any] | Mapping[int, Any]) -> bool:
        """Whether a program of these inputs is one for these numbers."""
        return all(_same(numbers[i], value) for i, value in self.constants.items())

    def fit_constants(self, constants: Mapping[int, Any]) -> bool:
        """Whether the constants are these."""
        return self.constants.keys() == constants.keys() and self.fit(constants)


def _same(a: Any, b: Any) -> bool:
    # 0.0 == -0.0 and 1 == True, which are different numbers; nan is itself.
    return a is b or repr(a) == repr(b)


def plan_inputs(graph: Graph, numbers: Sequence[Any], before: Inputs | None = None) -> Inputs:
    """The inputs of a graph's program.

    Args:
        graph: the graph.
        numbers: the values of its numbers.
        before: the inputs of a program of the same graph that does not fit the numbers; a constant that changed becomes
            an input where that is possible.
    """
    inputs: dict[type, list[int]] = {float: [], int: []}
    constants: dict[int, Any] = {}
    drawn_with = []
    for position, (node, index) in enumerate(graph.numbers):
        value = numbers[position]
        if node.call.is_random:
            drawn_with.append(position)
            continue
        if before is None:
            takes = is_input(node.call, index, value)
        elif position in before.constants:
            takes = not _same(before.constants[position], value) and can_be_input(node.call, index)
        else:
            takes = True
        if takes and not isinstance(value, complex):
            inputs[float if isinstance(value, float) else int].append(position)
        else:
            constants[position] = value
    shapes = tuple(node.value().shape for node in graph.parameters)
    return Inputs(shapes, tuple(inputs[float]), tuple(inputs[int]), constants, draw_graph(graph), tuple(drawn_with))
