"""A backend of your own for the lazy device, in twenty lines, and a network that trains on it.

docs/add-a-backend.md walks through it and says what comes next.

Run:  python examples/own_backend.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

import torchport
from torchport import BackendData, BackendDevice, Computation, Shape
from torchport.ir.inference import flatten_result


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in row-major order at the beginning of its memory, where ``view`` and ``as_strided`` expect it."""
    if tensor.is_contiguous() and not tensor.storage_offset():
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class OwnBackend(torchport.NullBackend):
    """Runs the nodes of a graph one by one with PyTorch on the CPU; handles are CPU tensors and Python numbers."""

    capabilities = torchport.Capabilities(training=True)

    def execute_computation(
        self, computation: Computation, arguments: Sequence[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        """The results of the graph: tensors and numbers in, in the order in which the graph lists them."""
        graph, outputs = computation.graph, {}
        tensors = iter([data.handle for data in arguments[: len(graph.parameters)]])
        numbers = iter([data.handle for data in arguments[len(graph.parameters) :]])
        for node in graph.nodes:
            if node.is_device_data:
                outputs[node] = [next(tensors)]
            else:
                operands = [compact(outputs[v.node][v.index]) for v in node.operands]
                args, kwargs = node.call.bind(operands, [next(numbers) for _ in node.numbers])
                outputs[node] = flatten_result(node.op(*args, **kwargs))
        return [BackendData(device, v.shape, outputs[v.node][v.index]) for v in graph.results]

    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        """A copy of the tensor."""
        return BackendData(device, shape, tensor.clone())

    def make_computation_data_from_scalar(
        self, scalar: bool | int | float | complex, device: BackendDevice
    ) -> BackendData:
        """The number itself."""
        return BackendData(device, Shape(torch.tensor(scalar).dtype, ()), scalar)

    def make_tensor_from_computation_data(
        self, data: BackendData, logical_scalar_type: torch.dtype | None = None
    ) -> torch.Tensor:
        """A copy for the caller."""
        return torch.as_tensor(data.handle).to(logical_scalar_type or data.shape.dtype, copy=True)


def train(device: str, steps: int = 20) -> list[float]:
    """The losses of a small network that learns to sort random points into four classes."""
    torch.manual_seed(0)
    points, labels = torch.randn(64, 8), torch.randint(4, (64,))
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    points, labels = points.to(device), labels.to(device)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(network(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    torchport.register_backend("own", OwnBackend)
    torchport.use("own")
    on_port, on_cpu = train("port"), train("cpu")
    print(f"loss {on_port[0]:.3f} -> {on_port[-1]:.3f} on port, {on_cpu[0]:.3f} -> {on_cpu[-1]:.3f} on the CPU")
    print(f"largest difference: {max(abs(a - b) for a, b in zip(on_port, on_cpu, strict=True)):.0e}")
    print(f"graphs compiled: {torchport.metrics.counter_value('UncachedCompile')}")
    print(f"operators that ran eagerly: {torchport.executed_fallback_ops() or 'none'}")
