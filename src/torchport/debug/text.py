"""The pending graph behind tensors, as text and as a hash."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchport.ir.graph import Graph
from torchport.lazy import active
from torchport.lazy.recording import read
from torchport.lazy.trace import LOCK


def _graph(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Graph:
    chosen = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    for t in chosen:
        if not isinstance(t, torch.Tensor) or t.device.type != active.device_type:
            where = t.device if isinstance(t, torch.Tensor) else type(t).__name__
            raise TypeError(f"tensors on {active.device_type!r} have a graph; this is on {where}")
    with LOCK:
        return Graph.of_results([read(t)[0] for t in chosen])


def ir_text(tensors: torch.Tensor | Sequence[torch.Tensor]) -> str:
    """The graph that computes the tensors from what is on the device, in the IR's text form. Computes nothing.

    Raises:
        TypeError: one of them is not on the lazy device.
    """
    return str(_graph(tensors))


def graph_hash(tensors: torch.Tensor | Sequence[torch.Tensor]) -> str:
    """The hash of that graph: 32 hexadecimal digits, equal in every process, whatever the values of numbers and data.

    Raises:
        TypeError: one of the tensors is not on the lazy device.
    """
    return _graph(tensors).hash


def backend_text(tensors: torch.Tensor | Sequence[torch.Tensor]) -> str:
    """What the active backend makes of that graph: it is lowered and compiled, and not executed.

    Raises:
        TypeError: one of the tensors is not on the lazy device.
    """
    graph = _graph(tensors)
    backend = active.backend()
    context = backend.create_lowering_context("backend_text", active.backend_device(), graph.nodes)
    for value in graph.results:
        context.add_result(value)
    (compiled,) = backend.compile([context.build()])
    return backend.get_computation_backend_text(compiled)
