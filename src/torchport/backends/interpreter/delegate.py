"""The interpreter's second door: what is saved is the graph itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from torchport.backend.availability import Availability
from torchport.backend.capabilities import Support
from torchport.backend.computation import Computation
from torchport.backend.data import BackendData
from torchport.backend.delegate import Payload, PyTorchBackendInterface
from torchport.backends.interpreter.transfer import scalar_shape
from torchport.ir.facts import facts_of
from torchport.ir.node import Node
from torchport.ir.parser import graph_of_payload
from torchport.ir.shape import Shape
from torchport_runtime.facts import GraphFacts

if TYPE_CHECKING:
    # The backend makes its delegate, which therefore only names its type.
    from torchport.backends.interpreter.backend import InterpreterBackend


class InterpreterDelegate(PyTorchBackendInterface):
    """Runs lowered graphs through PyTorch's kernels; where PyTorch is, it is available.

    Args:
        backend: whose compiler and kernels.
    """

    def __init__(self, backend: InterpreterBackend) -> None:
        self._backend = backend
        self._drawing = threading.Lock()

    def is_available(self) -> Availability:
        """Always."""
        return Availability(True)

    def supports(self, node: Node) -> Support:
        """What the backend says."""
        return self._backend.supports(node)

    def compile(self, processed: Mapping[str, Payload], method_compile_spec: Mapping[str, Any]) -> dict[str, Any]:
        """Compiled computations."""
        device = self._backend.get_backend_device(torch.device("cpu"))
        lowered = [Computation(name, graph_of_payload(name, t), [device]) for name, t in processed.items()]
        draws = [any(node.call.is_random for node in c.graph.nodes) for c in lowered]
        return dict(zip(processed, zip(self._backend.compile(lowered), draws, strict=True), strict=True))

    def facts_of(self, handle: Any) -> GraphFacts | None:
        """Those of the graph."""
        computation: Computation = handle[0]
        return facts_of(computation.graph)

    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        """The results; one that would be an input is a copy. Random numbers are those of ``torch.manual_seed``."""
        computation, draws = handle
        if not draws:
            return self._run(computation, inputs)
        with self._drawing:
            kept = self._backend.get_rng_state()
            self._backend.set_rng_state(torch.get_rng_state())
            try:
                return self._run(computation, inputs)
            finally:
                torch.set_rng_state(self._backend.get_rng_state())
                self._backend.set_rng_state(kept)

    def _run(self, handle: Computation, inputs: list[Any]) -> list[Any]:
        device = handle.devices[0]
        arguments = [
            BackendData(device, Shape(x.dtype, tuple(x.shape), x.stride()), x.detach())
            if isinstance(x, torch.Tensor)
            else BackendData(device, scalar_shape(x), x)
            for x in inputs
        ]
        given = {id(a) for a in arguments}
        results = []
        for data in self._backend.execute_computation(handle, arguments, device):
            if data.error is not None:
                raise data.error
            results.append(data.handle.clone() if id(data) in given else data.handle)
        return results
