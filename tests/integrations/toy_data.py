"""Small data sets that every program trains on, the same on every device."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES = 8, 3


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points with the number of conditions that each meets as its class."""
    x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def loader(count: int, seed: int, **options: object) -> DataLoader[tuple[torch.Tensor, ...]]:
    """The points in batches."""
    return DataLoader(TensorDataset(*points(count, seed)), batch_size=16, **options)  # type: ignore[arg-type]


def network(dropout: float = 0.0) -> nn.Sequential:
    """A classifier of the points, with the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(FEATURES, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.Linear(16, CLASSES)
        )


def sentences(count: int, seed: int, longest: int = 12) -> list[dict[str, torch.Tensor | int]]:
    """Token sequences of several lengths, labelled by whether most of their tokens are large."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, longest + 1, (count,), generator=generator).tolist()
    found: list[dict[str, torch.Tensor | int]] = []
    for length in lengths:
        tokens = torch.randint(2, 64, (length,), generator=generator)
        found.append(
            {
                "input_ids": tokens,
                "attention_mask": torch.ones(length, dtype=torch.long),
                "labels": int((tokens > 33).float().mean() > 0.5),
            }
        )
    return found


def padded(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Sequences of several lengths as one batch, as long as the longest of them."""
    longest = max(len(example["input_ids"]) for example in batch)
    rows = {
        name: [nn.functional.pad(e[name], (0, longest - len(e[name]))) for e in batch]
        for name in ("input_ids", "attention_mask")
    }
    return {
        **{name: torch.stack(tensors) for name, tensors in rows.items()},
        "labels": torch.tensor([e["labels"] for e in batch]),
    }
