"""A graph, compiled by a :class:`CompilerBackend`: its program, and further ones for other constants."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchport import metrics
from torchport.backend.compiler.inputs import Inputs, plan_inputs
from torchport.backend.compiler.program import CompilerInput, Executable, Outputs, normalized
from torchport.backend.compiler.retracing import retrace
from torchport.backend.computation import Computation
from torchport.backend.data import DONATED, BackendData
from torchport.ir.graph import Graph
from torchport.ir.shape import Shape
from torchport_runtime.compiled import ProgramHeader

if TYPE_CHECKING:
    # The backend makes its computations, which therefore only name its type.
    from torchport.backend.compiler.base import CompilerBackend

_VARIANTS = metrics.counter("CompiledVariant")
_MOST_VARIANTS = 64


@dataclass(slots=True)
class Variant:
    """A program of a graph.

    Attributes:
        inputs: what it takes.
        outputs: what its outputs are.
        aliases: result → parameter whose buffer it may take.
        executable: the compiled program; ``None`` when nothing is computed.
        drawing: the computation that draws random numbers first.
        header: what it takes and gives, for who writes it to a disk; ``None`` where nobody does.
        text: what the compiler made of it, for people.
        vectors: the numbers of the last call, and the handles that they became.
    """

    inputs: Inputs
    outputs: Outputs
    aliases: dict[int, int]
    executable: Executable | None
    drawing: Computation | None
    header: ProgramHeader | None = None
    text: str = ""
    vectors: tuple[Sequence[Any], list[Any]] | None = None


def compiler_input(
    graph: Graph, inputs: Inputs, backend: CompilerBackend, name: str, aliases: Mapping[int, int], **how: Any
) -> tuple[CompilerInput, Outputs, dict[int, int]]:
    """What the compiler is given for a graph, how its outputs become results, and the aliases of results that hold."""
    module = retrace(graph, inputs, backend.decompositions())
    outputs = normalized(module)
    used, held = aliases_that_hold(outputs.sources, aliases)
    layouts: dict[int, tuple[int, ...]] = {}
    for value, (kind, index) in zip(graph.results, outputs.sources, strict=True):
        if kind == "output":
            shape = value.shape
            # A layout in which elements share memory cannot be written: a dense one has the same values.
            layouts.setdefault(index, Shape(shape.dtype, shape.sizes).strides if 0 in shape.strides else shape.strides)
    in_order = tuple(layouts[i] for i in range(len(layouts)))
    numbers = [node.numbers[i] for node, i in graph.numbers]
    known = dict(enumerate(inputs.vectors(numbers), len(inputs.tensors)))
    return CompilerInput(name, module, in_order, used, backend.options, known=known, **how), outputs, held


def aliases_that_hold(
    sources: Sequence[tuple[str, int]], aliases: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Of aliases of results and parameters those of results that are outputs of their own: by output, and by result."""
    by_output: dict[int, int] = {}
    by_result: dict[int, int] = {}
    for result, parameter in aliases.items():
        kind, index = sources[result]
        if kind == "output" and index not in by_output:
            by_output[index] = by_result[result] = parameter
    return by_output, by_result


class CompiledComputation(Computation):
    """A computation with its programs.

    Args:
        source: the computation as it was lowered.
        backend: whose compiler.
        first: its program for the numbers that the graph has.
    """

    def __init__(self, source: Computation, backend: CompilerBackend, first: Variant) -> None:
        super().__init__(source.name, source.graph, source.devices, source.aliases, source.cause)
        self._backend = backend
        self._lock = threading.Lock()
        self._tensors = len(source.graph.parameters)
        self._shapes = [(v.shape, not any(v.shape.symbolic)) for v in source.graph.results]
        self.variants = [first]

    @property
    def current(self) -> Variant:
        """The program that ran last."""
        return self.variants[-1]

    def variant_for(self, numbers: Sequence[Any]) -> Variant:
        """The program for the numbers of a call; compiled now when there is none."""
        variant = self.variants[-1]
        if variant.inputs.fit(numbers):
            return variant
        with self._lock:
            for i, variant in enumerate(self.variants):
                if variant.inputs.fit(numbers):
                    self.variants.append(self.variants.pop(i))
                    return variant
            _VARIANTS.value += 1
            made = self._backend.make_variant(
                self.graph, self.name, plan_inputs(self.graph, numbers, self.variants[-1].inputs), self.aliases
            )
            self.variants = [*self.variants[1 - _MOST_VARIANTS :], made]
            return made

    def execute(self, arguments: list[BackendData]) -> list[BackendData]:
        """The results. A donated argument whose buffer a result took has lost its handle.

        Raises:
            ValueError: there are too many arguments or too few, or one has no value.
        """
        backend = self._backend
        tensors = self._tensors
        handles = [a.handle for a in arguments]
        if len(handles) != tensors + len(self.graph.numbers):
            raise ValueError(f"{self.name!r} takes {self.parameter_count} arguments; {len(handles)} were given")
        for i, handle in enumerate(handles):
            if handle is None:
                raise ValueError(f"argument {i} of {self.name!r} has no value: {arguments[i]!r}; wait for it first")
        numbers = handles[tensors:]
        variant = self.variant_for(numbers)
        given = handles[:tensors]
        for parameter in variant.aliases.values():
            if arguments[parameter].info is not DONATED:
                given[parameter] = backend.copy_handle(given[parameter])
        device = self.devices[0]
        return [
            BackendData(device, shape if fixed else backend.shape_of_handle(handle, shape), handle)
            for handle, (shape, fixed) in zip(run_variant(variant, backend, given, numbers), self._shapes, strict=True)
        ]


def run_variant(variant: Variant, backend: CompilerBackend, given: list[Any], numbers: Sequence[Any]) -> list[Any]:
    """Handles of the results of a program.

    Args:
        variant: the program, one for these numbers.
        backend: whose it is.
        given: handles of the tensors; the further inputs are added to the list.
        numbers: the numbers of the graph.
    """
    if variant.vectors is None or variant.vectors[0] != numbers:
        variant.vectors = numbers, list(map(backend.from_host, variant.inputs.vectors(numbers)))
    given += variant.vectors[1]
    if variant.drawing is not None:
        given += backend.draw(variant.drawing, [numbers[i] for i in variant.inputs.drawn_with])
    made = variant.executable(*given) if variant.executable is not None else ()
    # A result that is an input is a handle of its own: either may be donated later.
    return [
        made[index] if kind == "output" else backend.copy_handle(given[index])
        for kind, index in variant.outputs.sources
    ]


def shape_of_result(sizes: tuple[int, ...], promised: Shape) -> Shape:
    """The shape of a result whose sizes are known now: the promised one, where they are the promised sizes."""
    if sizes == promised.sizes and True not in promised.symbolic:
        return promised
    return Shape(promised.dtype, sizes)
