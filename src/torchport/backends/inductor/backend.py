"""Inductor behind the contract: a whole step is one graph, compiled to C++ kernels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import ClassVar

import torch
from torch import fx

from torchport.backend import Availability, Capabilities
from torchport.backend.compiler import CompilerBackend, CompilerInput, Executable
from torchport.backend.compiler.retracing import Decompositions
from torchport.backends.inductor.availability import missing_compiler
from torchport.backends.inductor.options import InductorOptions

_COPY = torch.ops.aten.copy_.default


@cache
def _compiling() -> ModuleType:
    """Inductor, at its first use: it takes a second to import, and PyTorch's own modules warn meanwhile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module("torchport.backends.inductor.compiling")


class InductorBackend(CompilerBackend):
    """Compiles graphs with Inductor, for the CPU; files hold AOTInductor packages, which need torch and no compiler."""

    Options: ClassVar[type] = InductorOptions
    capabilities = Capabilities(
        input_output_aliasing=True,
        random=True,
        random_state=True,
        eager_random_stream=True,
        concurrent_execution=True,
        training=True,
    )

    @classmethod
    def availability(cls) -> Availability:
        """Whether there is a C++ compiler."""
        missing = missing_compiler()
        if missing:
            return Availability(
                False,
                f"Inductor writes C++ and finds no compiler for it ({missing}); install one, for example "
                "`apt-get install g++`, or name yours in the environment variable CXX",
                torch.__version__,
            )
        return Availability(True, "", torch.__version__)

    @classmethod
    def runtime_availability(cls) -> Availability:
        """Packages need torch, which is here."""
        return Availability(True, "", torch.__version__)

    @cached_property
    def _decompositions(self) -> Decompositions:
        table: Decompositions = _compiling().decompositions()
        return table

    def decompositions(self) -> Decompositions:
        """Inductor's own."""
        return self._decompositions

    def compile_graph(self, program: CompilerInput) -> Executable:
        """The program as a callable; for a file, as a package."""
        settings = self.options.config()
        if program.saved:
            return Package(_compiling().package(program.exported(), settings), program.layouts)
        results = _write_into_inputs(program)
        run = _compiling().compile_module(program.module, list(program.aliases.values()), settings)
        return _Program(run, results, program.layouts)

    def serialize(self, executable: Executable) -> bytes:
        """The package."""
        assert isinstance(executable, Package)
        return executable.content

    def deserialize(self, payload: bytes | memoryview) -> Executable:
        """What runs a package."""
        run = _compiling().load(payload)

        def execute(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
            results: Sequence[torch.Tensor] = run(list(inputs))
            return results

        return execute

    def cache_key(self) -> str:
        """Threads too: the kernels are written for a number of them."""
        return f"{super().cache_key()} {torch.get_num_threads()} threads"


def _write_into_inputs(program: CompilerInput) -> list[tuple[str, int]]:
    """Makes the outputs that may take an input's buffer writes to that input; tells where each output is found then."""
    graph = program.module.graph
    inputs = graph.find_nodes(op="placeholder")
    output = graph.output_node()
    kept: list[fx.Node] = []
    results: list[tuple[str, int]] = []
    with graph.inserting_before(output):
        for index, value in enumerate(output.args[0]):  # type: ignore[arg-type]
            taken = program.aliases.get(index)
            if taken is None:
                results.append(("output", len(kept)))
                kept.append(value)
            else:
                made = graph.call_function(_COPY, (inputs[taken], value))
                made.meta["val"] = inputs[taken].meta["val"]
                results.append(("input", taken))
    output.args = (tuple(kept),)
    output.meta["val"] = tuple(n.meta["val"] for n in kept)
    program.module.recompile()
    return results


class _Program:
    """Calls a compiled module, and puts its outputs in order and in the layouts that were promised."""

    __slots__ = ("_layouts", "_results", "_run")

    def __init__(self, run: object, results: list[tuple[str, int]], layouts: tuple[tuple[int, ...], ...]) -> None:
        self._run = run
        self._results = results
        self._layouts = layouts

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        made = self._run(list(inputs))  # type: ignore[operator]
        found = [inputs[i] if kind == "input" else made[i] for kind, i in self._results]
        return [
            x if x.stride() == strides else _laid_out(x, strides)
            for x, strides in zip(found, self._layouts, strict=True)
        ]


def _laid_out(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


@dataclass(frozen=True, slots=True)
class Package:
    """A compiled program for a file; it is called after it has been loaded from there."""

    content: bytes
    layouts: tuple[tuple[int, ...], ...]

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """Raises TypeError."""
        raise TypeError("a package is loaded before it is called")
