"""A ``LightningModule`` that learns handwritten digits on the device ``port``.

The module is an ordinary one. The trainer is told the device by its strategy, which is all that differs.

Run:  pip install -e '.[demo,models]' && python examples/lightning_digits.py [device]
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import lightning
import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset

import torchport  # registers the device "port" with torch
from torchport.cli.digits import DigitsNetwork, load_digits
from torchport.integrations.lightning import TorchportStrategy


class Digits(lightning.LightningModule):
    """A network that reads 8x8 images of digits, with its loss, its metric and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.network = DigitsNetwork()
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss)
        return loss

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Counts what is right in a batch."""
        images, labels = batch
        self.accuracy(self.network(images), labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as in examples/digits.py."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main(device: str = "port") -> float:
    """Trains on ``device``; returns the share of the test digits that the network gets right."""
    torch.set_num_threads(1)
    lightning.seed_everything(0)
    data = load_digits()
    train = DataLoader(TensorDataset(data.train_images, data.train_labels), batch_size=32, shuffle=True)
    test = DataLoader(TensorDataset(data.test_images, data.test_labels), batch_size=64)
    where: dict[str, Any] = {"strategy": TorchportStrategy()} if device == "port" else {"accelerator": device}
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(**where, max_epochs=4, precision="bf16-mixed", default_root_dir=folder)
        model = Digits()
        trainer.fit(model, train)
        (figures,) = trainer.test(model, test)
    print(f"on {trainer.strategy.root_device}: {figures['accuracy']:.1%} of the test digits are right")
    return figures["accuracy"]


if __name__ == "__main__":
    main(*sys.argv[1:2])
    print(f"graphs compiled: {torchport.metrics.counter_value('UncachedCompile')}")
