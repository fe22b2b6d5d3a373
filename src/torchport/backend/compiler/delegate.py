"""The second door of a compiler: programs are compiled on the host, saved as bytes, and loaded where they run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from torchport.backend.availability import Availability
from torchport.backend.capabilities import Support
from torchport.backend.compiler.computation import Variant, compiler_input, run_variant
from torchport.backend.compiler.inputs import plan_inputs
from torchport.backend.compiler.payload import header_of, inputs_of, is_program, pack, unpack
from torchport.backend.compiler.program import Outputs
from torchport.backend.delegate import DelegatedModule, Payload, PyTorchBackendInterface
from torchport.errors import BackendError, BackendNotAvailableError
from torchport.ir.facts import facts_of
from torchport.ir.graph import Graph
from torchport.ir.node import Node
from torchport.ir.parser import graph_of_payload
from torchport_runtime.compiled import facts_of_header
from torchport_runtime.facts import GraphFacts

if TYPE_CHECKING:
    # The backend makes its delegate, which therefore only names its type.
    from torchport.backend.compiler.base import CompilerBackend


class CompilerDelegate(PyTorchBackendInterface):
    """Lowers modules with a compiler.

    Where the compiler turns its programs into bytes, these are saved, and need no compiler on the target; else the
    graph's text is saved, and compiled when it is loaded.

    Args:
        backend: whose compiler.
    """

    def __init__(self, backend: CompilerBackend) -> None:
        self._backend = backend
        self._drawing = threading.Lock()

    def is_available(self) -> Availability:
        """Whether programs can be run here; compiling may need more, and says so when it is asked for."""
        return self._backend.runtime_availability()

    def supports(self, node: Node) -> Support:
        """What the backend says; and symbolic sizes only where it takes them."""
        shapes = [*node.call.inputs, *(s for s in node.call.outputs if s is not None)]
        if any(any(s.symbolic) for s in shapes) and not self._backend.capabilities.symbolic_sizes:
            return Support(False, "its sizes are symbolic, and the backend compiles for fixed sizes only")
        return self._backend.supports(node)

    def preprocess(self, module: DelegatedModule, method_compile_spec: Mapping[str, Any]) -> dict[str, bytes]:
        """A compiled program for each graph, where the backend can save one; else the graph's text."""
        return {name: self._preprocess(name, graph, method_compile_spec[name]) for name, graph in module.graphs.items()}

    def _preprocess(self, name: str, graph: Graph, options: Mapping[str, Any] | None) -> bytes:
        backend = self._backend.with_options(options)
        if not backend.saves_programs:
            return str(graph).encode()
        _check_compiler(backend, name)
        inputs = plan_inputs(graph, [n.numbers[i] for n, i in graph.numbers])
        program, outputs, _ = compiler_input(graph, inputs, backend, name, {}, saved=True)
        # A graph whose results are its inputs, or drawn, leaves a compiler nothing to do.
        body = backend.serialize(backend.compile_graph(program)) if program.outputs else b""
        header = header_of(inputs, outputs, program, backend.payload_details())
        return pack(header, body)

    def compile(self, processed: Mapping[str, Payload], method_compile_spec: Mapping[str, Any]) -> dict[str, Any]:
        """Computations that are ready to run."""
        return {name: self._load(name, payload, method_compile_spec[name]) for name, payload in processed.items()}

    def _load(self, name: str, payload: Payload, options: Mapping[str, Any] | None) -> _Loaded:
        backend = self._backend.with_options(options)
        if is_program(payload):
            return _saved(backend, name, payload)
        return _compiled(backend, name, graph_of_payload(name, payload))

    def compile_here(self, module: DelegatedModule, method_compile_spec: Mapping[str, Any]) -> dict[str, Any]:
        """Programs in the form that the compiler runs here, which may be another than the one it saves."""
        return {
            name: _compiled(self._backend.with_options(method_compile_spec[name]), name, graph)
            for name, graph in module.graphs.items()
        }

    def facts_of(self, handle: Any) -> GraphFacts | None:
        """Those of the graph, or of the program's header."""
        loaded: _Loaded = handle
        return loaded.facts

    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        """The results, each a tensor of the caller's own. Random numbers are those of ``torch.manual_seed``."""
        loaded: _Loaded = handle
        if loaded.variant.drawing is None:
            return loaded.run(inputs)
        backend = loaded.backend
        with self._drawing:
            kept = backend.get_rng_state()
            backend.set_rng_state(torch.get_rng_state())
            try:
                return loaded.run(inputs)
            finally:
                torch.set_rng_state(backend.get_rng_state())
                backend.set_rng_state(kept)


class _Loaded:
    """A program, ready for tensors."""

    def __init__(self, backend: CompilerBackend, variant: Variant, facts: GraphFacts) -> None:
        self.backend = backend
        self.facts = facts
        self.variant = variant
        self._strides = [shape.strides for shape in variant.inputs.tensors]

    def run(self, inputs: list[Any]) -> list[Any]:
        """The results for tensors and numbers."""
        backend = self.backend
        count = len(self._strides)
        numbers = inputs[count:]
        if not self.variant.inputs.fit(numbers):
            raise BackendError(f"compiled for the numbers {self.variant.inputs.constants}; called with {numbers}")
        given = []
        for x, strides in zip(inputs, self._strides, strict=False):
            x = x.detach()
            if x.stride() != strides:
                x = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
            given.append(backend.from_host(x))
        results = run_variant(self.variant, backend, given, numbers)
        taken = {id(h) for h in given}
        # An input that is a result is the caller's; one result that is there twice would be one tensor in two hands.
        tensors = []
        for handle in results:
            tensor = backend.to_host(handle)
            tensors.append(tensor.clone() if id(handle) in taken else tensor)
            taken.add(id(handle))
        return tensors


def _check_compiler(backend: CompilerBackend, name: str) -> None:
    available = backend.availability()
    if not available:
        raise BackendNotAvailableError(type(backend).__name__, f"{name} has to be compiled: {available.reason}")


def _compiled(backend: CompilerBackend, name: str, graph: Graph) -> _Loaded:
    _check_compiler(backend, name)
    numbers = [node.numbers[i] for node, i in graph.numbers]
    return _Loaded(backend, backend.make_variant(graph, name, plan_inputs(graph, numbers)), facts_of(graph))


def _saved(backend: CompilerBackend, name: str, payload: Payload) -> _Loaded:
    header, body = unpack(payload)
    inputs = inputs_of(header)
    drawing = None if inputs.draws is None else backend.compile_draws(name, inputs.draws)
    executable = backend.deserialize(body) if header.outputs else None
    variant = Variant(inputs, Outputs(header.results), {}, executable, drawing)
    drawn = [] if inputs.draws is None else facts_of(inputs.draws).results
    return _Loaded(backend, variant, facts_of_header(header, drawn))
