"""What a compiler is given, and what is kept of what it made."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram

Executable = Callable[..., Sequence[Any]]
"""A compiled program: handles in, as many as the module has placeholders, a handle per output out."""


@dataclass(frozen=True, slots=True)
class CompilerInput:
    """A graph for a compiler.

    Attributes:
        name: for people and reports.
        module: functional ATen operators at the backend's level, weights among the inputs; ``meta["val"]`` of each node
            holds fake tensors on the CPU. No output is an input, or looks at the memory of one or of another output.
        layouts: the strides that each output is to have in PyTorch; a compiler that knows none may ignore them.
        aliases: output → input: the executable may write the output into that input's buffer, which nobody else needs.
        options: what the user asked for, an instance of the backend's ``Options``.
        target: what it is compiled for, one of the backend's ``targets()``; ``None`` for this machine.
        saved: whether the result is to be serialized for a file.
        known: inputs whose contents are known by way of example, the numbers of the graph.
    """

    name: str
    module: fx.GraphModule
    layouts: tuple[tuple[int, ...], ...] = ()
    aliases: Mapping[int, int] = field(default_factory=dict)
    options: Any = None
    target: str | None = None
    saved: bool = False
    known: Mapping[int, torch.Tensor] = field(default_factory=dict)

    @property
    def inputs(self) -> list[torch.Tensor]:
        """A fake tensor for each input."""
        return [n.meta["val"] for n in self.module.graph.nodes if n.op == "placeholder"]

    @property
    def outputs(self) -> list[torch.Tensor]:
        """A fake tensor for each output."""
        return list(self.module.graph.output_node().meta["val"])

    def example_inputs(self, seed: int = 0) -> list[torch.Tensor]:
        """Real tensors for the inputs: what is known, else numbers from 0 to 1, so that an index is within any size."""
        generator = torch.Generator().manual_seed(seed)
        made = []
        for i, fake in enumerate(self.inputs):
            if i in self.known:
                value = self.known[i]
            elif fake.dtype.is_floating_point or fake.dtype.is_complex:
                value = torch.rand(fake.shape, generator=generator, dtype=torch.float64).to(fake.dtype)
            elif fake.dtype is torch.bool:
                value = torch.rand(fake.shape, generator=generator) < 0.5
            else:
                value = torch.zeros(fake.shape, dtype=fake.dtype)
            made.append(torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype).copy_(value))
        return made

    def exported(self) -> ExportedProgram:
        """The graph as an ``ExportedProgram``, for converters that take one."""
        with torch.no_grad():
            return torch.export.export(self.module, tuple(self.example_inputs()), strict=False)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Which output of the executable, or which input, each result is.

    Attributes:
        sources: for each result ``("output", i)`` or ``("input", i)``.
    """

    sources: tuple[tuple[str, int], ...]


def normalized(module: fx.GraphModule) -> Outputs:
    """Removes outputs that are inputs, and outputs that are there twice, from a module; compilers disagree on them.

    An output that looks at the memory of an input, or of another output, becomes a copy: whoever has the one may write
    to it, or donate its buffer, while somebody else holds the other.
    """
    output = module.graph.output_node()
    placeholders = {n: i for i, n in enumerate(module.graph.find_nodes(op="placeholder"))}
    kept: dict[fx.Node, int] = {}
    sources = []
    for value in output.args[0]:  # type: ignore[union-attr]
        assert isinstance(value, fx.Node)
        if value in placeholders:
            sources.append(("input", placeholders[value]))
        else:
            sources.append(("output", kept.setdefault(value, len(kept))))
    taken = set(placeholders)
    owned = []
    for value in kept:
        memory = _memory_of(value)
        owned.append(_copy_of(value, output) if memory in taken else value)
        taken.add(memory)
    output.args = (tuple(owned),)
    output.meta["val"] = tuple(n.meta["val"] for n in owned)
    module.recompile()
    return Outputs(tuple(sources))


def _memory_of(value: fx.Node) -> fx.Node:
    """The node whose result has the memory that a value looks at, through any number of views."""
    while value.op == "call_function":
        # Of an operator with several results that are views, such as a split, each is got from a list.
        source = value.args[0] if value.target is operator.getitem else value
        assert isinstance(source, fx.Node)
        returns = source.target._schema.returns if isinstance(source.target, OpOverload) else ()
        if not any(r.alias_info is not None for r in returns):
            return value
        assert isinstance(source.args[0], fx.Node)
        value = source.args[0]
    return value


def _copy_of(value: fx.Node, before: fx.Node) -> fx.Node:
    with value.graph.inserting_before(before):
        copy = value.graph.call_function(torch.ops.aten.clone.default, (value,))
    copy.meta["val"] = value.meta["val"].clone()
    return copy
