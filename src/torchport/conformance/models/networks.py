"""Networks that are small enough for any compiler, with the operators that the large ones are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

CLASSES = 4


class Mlp(nn.Module):
    """Two layers, layer norm, an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of classes for ``(batch, 12)``."""
        scores: torch.Tensor = self.second(functional.gelu(self.norm(self.first(x))))
        return scores


class Cnn(nn.Module):
    """Convolutions, batch norm, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.scores = nn.Conv2d(4, 6, 3, stride=2), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of classes for ``(batch, 1, 8, 8)``."""
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        scores: torch.Tensor = self.scores(functional.adaptive_avg_pool2d(self.second(x), 1).flatten(1))
        return scores


class Transformer(nn.Module):
    """Embeddings, a layer of attention, a mean over the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(6, 16)
        # Without a bias: that of the keys has no influence, so its gradient would be rounding, which Adam blows up.
        self.qkv, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])
        self.scores = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of classes for tokens ``(batch, 6)``."""
        h = self.tokens(x) + self.places(torch.arange(6, device=x.device))
        q, k, v = self.qkv(self.norms[0](h)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
        h = h + self.out((weights @ v).transpose(1, 2).flatten(2))
        h = h + self.second(functional.gelu(self.first(self.norms[1](h))))
        scores: torch.Tensor = self.scores(h.mean(1))
        return scores


def _rows(generator: torch.Generator) -> torch.Tensor:
    return torch.rand(5, 12, generator=generator)


def _pictures(generator: torch.Generator) -> torch.Tensor:
    return torch.rand(5, 1, 8, 8, generator=generator)


def _sentences(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(20, (5, 6), generator=generator)


NETWORKS: dict[str, tuple[type[nn.Module], Callable[[torch.Generator], torch.Tensor]]] = {
    "mlp": (Mlp, _rows),
    "cnn": (Cnn, _pictures),
    "transformer": (Transformer, _sentences),
}
"""Name → class, and what makes a batch of inputs."""


def network(name: str) -> nn.Module:
    """A network whose weights are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return NETWORKS[name][0]()


def batch(name: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of a network, and classes to learn."""
    generator = torch.Generator().manual_seed(seed)
    x = NETWORKS[name][1](generator)
    return x, torch.randint(CLASSES, (len(x),), generator=generator)
