"""The training steps that the benchmarks share: each a model, an optimizer, one batch and a loss, from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

SEED = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained. The batch is the same in every step and lies on the device already: loading is not measured."""

    description: str
    build_model: Callable[[], nn.Module]
    build_batch: Callable[[], tuple[Tensor, Tensor]]
    build_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]


class Encoder(nn.Module):
    """A transformer encoder, d 128, 2 layers, 4 heads: (batch, seq, 128) -> (batch, 10). No dropout: the losses of
    all contenders can be compared."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.project = nn.Linear(128, 128)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.project(tokens)).mean(dim=1))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
    )


def _batch(*sizes: int, classes: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(sizes), torch.randint(classes, sizes[:1]))


_ENCODER = "transformer encoder, d 128, 2 layers, seq 64, batch 8"
WORKLOADS = {
    "mlp": Workload("MLP, 3 x Linear(64), batch 32, SGD", _mlp, _batch(32, 64, classes=64), lambda p: SGD(p, lr=0.01)),
    "cnn": Workload(
        "CNN, 2 convolutions, 28 x 28, batch 32, SGD with momentum",
        _cnn,
        _batch(32, 1, 28, 28, classes=10),
        lambda p: SGD(p, lr=0.01, momentum=0.9),
    ),
    "transformer_adam": Workload(
        f"{_ENCODER}, Adam", Encoder, _batch(8, 64, 128, classes=10), lambda p: Adam(p, lr=1e-3)
    ),
    "transformer_sgd": Workload(f"{_ENCODER}, SGD", Encoder, _batch(8, 64, 128, classes=10), lambda p: SGD(p, lr=0.01)),
}


class Training:
    """A workload on a device, one ordinary step at a time."""

    def __init__(self, name: str, device: str, transform: Callable[[nn.Module], Callable[..., Tensor]] = lambda m: m):
        """Build the workload ``name`` on ``device``; ``transform`` may wrap the model, such as in torch.compile."""
        workload = WORKLOADS[name]
        torch.manual_seed(SEED)
        model = workload.build_model()
        inputs, labels = workload.build_batch()
        model = model.to(device).train()
        self.inputs, self.labels = inputs.to(device), labels.to(device)
        self.optimizer = workload.build_optimizer(model.parameters())
        self.model = transform(model)

    def step(self) -> Tensor:
        """Forward, backward, optimizer; gives the loss, not read."""
        loss = functional.cross_entropy(self.model(self.inputs), self.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
