"""The delegate interface: a module's graphs are processed on a host, saved, and compiled and executed on a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchport.backend.availability import Availability
from torchport.backend.capabilities import Support
from torchport.ir.graph import Graph
from torchport.ir.node import Node
from torchport_runtime.facts import GraphFacts

Payload = bytes | memoryview
"""What a backend made of a graph: bytes of its own, or where a file is mapped."""


@dataclass(frozen=True, slots=True)
class DelegatedModule:
    """What a backend is given of a module: the graphs that it is to run, and nothing else.

    Attributes:
        graphs: by name: of a method that is delegated whole its own name, of a part ``method.p0``, ``method.p1``, …
            Tensor inputs come first, weights among them, then numbers; results in order.
    """

    graphs: Mapping[str, Graph]


class PyTorchBackendInterface(ABC):
    """What a backend does for a module that is lowered ahead of time.

    The life of one: ``preprocess`` on the host, once; ``compile`` where the module is to run (on the host at its
    creation, on a target when it is loaded); ``execute`` at each call.

    Law: ``is_available()`` is true only if ``compile()`` and ``execute()`` can both be called here
    (tests/aot/test_availability.py).
    """

    def is_available(self) -> bool | Availability:
        """Whether this backend can compile and execute here; an ``Availability`` says why not.

        A backend from before this method existed counts as available.
        """
        return True

    def supports(self, node: Node) -> Support:
        """Whether this backend runs the node. What it refuses is left to the interpreter, or an error."""
        return Support(True)

    def kept_whole(self, graph: Graph) -> Sequence[Sequence[Node]]:
        """Groups of nodes that this backend runs in one part, or not at all; quantized groups are so by themselves."""
        return ()

    def preprocess(self, module: DelegatedModule, method_compile_spec: Mapping[str, Any]) -> dict[str, bytes]:
        """The graphs in the form that is saved. It runs on the host, once; whatever can be done ahead belongs here.

        Args:
            module: the graphs.
            method_compile_spec: for each graph the options that its method was given, or ``None``.

        Returns:
            Bytes by the names of the graphs. By default each graph's text.
        """
        return {name: str(graph).encode() for name, graph in module.graphs.items()}

    @abstractmethod
    def compile(self, processed: Mapping[str, Payload], method_compile_spec: Mapping[str, Any]) -> dict[str, Any]:
        """A handle for each graph. Where everything was done ahead, this only loads it.

        Raises:
            Exception: of any kind: the payload cannot be loaded here. Its text becomes the reason.
        """

    def compile_here(self, module: DelegatedModule, method_compile_spec: Mapping[str, Any]) -> dict[str, Any]:
        """A handle for each graph, for this process only: nothing is saved. By default what is processed is compiled.

        Args:
            module: the graphs.
            method_compile_spec: as for :meth:`preprocess`.
        """
        return self.compile(self.preprocess(module, method_compile_spec), method_compile_spec)

    def facts_of(self, handle: Any) -> GraphFacts | None:
        """What a handle's graph takes and gives, where that is known before it runs.

        A file whose payload is another than its graph calls is then refused when it is loaded. By default unknown.
        """
        return None

    @abstractmethod
    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        """The results of a graph for tensors and then numbers, in the graph's order; one tensor per result.

        The inputs are the caller's: they are not changed. The results are the caller's own.
        """


def availability_of(name: str, delegate: PyTorchBackendInterface) -> Availability:
    """What a delegate says of itself, with a reason where it says no."""
    probe = getattr(delegate, "is_available", None)
    if probe is None:
        return Availability(True)
    try:
        answer = probe()
    except Exception as error:  # noqa: BLE001 - a vendor's probe; what it raised is the reason
        return Availability(False, f"asking {name!r} whether it is available raised {type(error).__name__}: {error}")
    if isinstance(answer, Availability):
        return answer
    return Availability(True) if answer else Availability(False, "its is_available() says no, without a reason")
