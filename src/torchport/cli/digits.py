"""The demo's job: a small convolutional network learns handwritten digits. The same code for every device.

``examples/digits.py`` shows the data and the network of this module in a training loop of its own.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH = 32
TRAIN_IMAGES = 1440  # 45 full batches of 32; the other 357 of the 1,797 images are for testing
SEED = 0


@dataclass(frozen=True, slots=True)
class Digits:
    """Handwritten digits as (count, 1, 8, 8) float32 in [0, 1], and their labels as (count,) int64, on the CPU."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """The 1,797 images that scikit-learn ships, split into training and test part by a fixed permutation."""
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(SEED))
    images = (torch.tensor(bunch.images, dtype=torch.float32) / 16.0).unsqueeze(1)[order]
    labels = torch.tensor(bunch.target, dtype=torch.int64)[order]
    return Digits(images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES], images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:])


class DigitsNetwork(nn.Sequential):
    """Two convolutions with batch norm, dropout, two linear layers: (batch, 1, 8, 8) -> (batch, 10)."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(64, 10),
        )


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a training left: the network, the loss of every step, and the seconds per step of every epoch."""

    network: nn.Module
    losses: Tensor
    epoch_step_s: tuple[float, ...]


def train(
    device: str,
    data: Digits,
    epochs: int,
    on_step: Callable[[], None] = lambda: None,
    on_epoch: Callable[[], None] = lambda: None,
) -> TrainingRun:
    """Train on ``device``; equal seeds give equal initial weights, batches and dropout masks on every device.

    Args:
        device: ``"port"``, ``"cpu"`` or any other device of torch.
        data: the digits.
        epochs: passes over the training part.
        on_step: called after every step.
        on_epoch: called after every epoch, when its losses have been read.
    """
    torch.manual_seed(SEED)
    network = DigitsNetwork().to(device)
    # Initialising drew from the CPU's generator, on every device; the dropout masks come from the device's own. Seeding
    # again puts both at the same place.
    torch.manual_seed(SEED)
    shuffle = torch.Generator().manual_seed(SEED)
    steps_per_epoch = len(data.train_images) // BATCH
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * steps_per_epoch)
    network.train()
    epoch_losses, epoch_step_s = [], []
    for _ in range(epochs):
        start_s = time.perf_counter()
        losses = []
        for batch in torch.randperm(steps_per_epoch * BATCH, generator=shuffle).view(steps_per_epoch, BATCH):
            images, labels = data.train_images[batch].to(device), data.train_labels[batch].to(device)
            loss = functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            # Reading the loss here would make every step wait for its result; read at the end of the epoch, it does
            # not. Detached, it does not keep the step's activations alive either.
            losses.append(loss.detach())
            on_step()
        epoch_losses.append(torch.stack(losses).cpu())
        epoch_step_s.append((time.perf_counter() - start_s) / steps_per_epoch)
        on_epoch()
    return TrainingRun(network, torch.cat(epoch_losses), tuple(epoch_step_s))


def predict(network: nn.Module, images: Tensor, device: str) -> Tensor:
    """The digit that the network sees in each image, on the CPU as (count,) int64."""
    network.eval()
    with torch.no_grad():
        scores: Tensor = network(images.to(device))
        return scores.argmax(dim=1).cpu()


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """The share of predictions that are right."""
    return float((predictions == labels).double().mean())
