"""Lightning: ``Trainer`` and ``Fabric``, with torchmetrics."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from integrations.check import Check
from integrations.toy_data import CLASSES, loader, network
from torchport.integrations.lightning import TorchportFabricStrategy, TorchportStrategy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    """Batch norm and dropout, two metrics, a schedule that steps with every batch."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = network(dropout)
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=CLASSES)
        self.f1 = torchmetrics.F1Score("multiclass", num_classes=CLASSES, average="macro")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(self.trainer.fit_loop.total_batch_idx)  # dropout draws the same on every device

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        scores = self.network(x)
        self.accuracy(scores, y)
        self.f1(scores, y)
        self.log("val_loss", nn.functional.cross_entropy(scores, y))
        self.log_dict({"val_accuracy": self.accuracy, "val_f1": self.f1})

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        scores: torch.Tensor = self.network(batch[0])
        return scores

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def placed(device: str) -> dict[str, Any]:
    """What the trainer is told: the one difference between the devices."""
    return {"accelerator": "cpu"} if device == "cpu" else {"strategy": TorchportStrategy()}


def trainer(device: str, folder: Path, **options: Any) -> lightning.Trainer:
    """A quiet trainer that checkpoints and logs every step into the folder."""
    options = {**placed(device), "max_epochs": 2, **options}
    return lightning.Trainer(
        default_root_dir=folder,
        logger=CSVLogger(folder, name="log", version=""),
        callbacks=[
            ModelCheckpoint(folder / "checkpoints", monitor="val_loss", save_last=True),
            EarlyStopping("val_loss", patience=5),
            LearningRateMonitor(),
            DeviceStatsMonitor(cpu_stats=False),
        ],
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
        accumulate_grad_batches=2,
        **options,
    )


def logged(folder: Path) -> list[dict[str, float]]:
    """What the logger wrote, without the figures of the device itself."""
    with (folder / "log" / "metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = [{k: float(v) for k, v in row.items() if v and not k.startswith("DeviceStatsMonitor")} for row in rows]
    return [row for row in found if row.keys() != {"step"}]


def fit_test_and_predict(device: str, folder: Path, dropout: float = 0.2, **options: Any) -> dict[str, Any]:
    t = trainer(device, folder, **options)
    model = Classifier(dropout)
    # The order is drawn from a generator of its own: on the CPU, dropout would advance the one that it has by default.
    order = torch.Generator().manual_seed(3)
    data = loader(96, 1, shuffle=True, generator=order, num_workers=2, persistent_workers=True)
    t.fit(model, data, loader(48, 2))
    assert t.strategy.root_device.type == device
    (tested,) = t.test(model, loader(48, 3), verbose=False)
    predicted = torch.cat(t.predict(model, loader(16, 4)) or [])  # type: ignore[arg-type]
    # The logger rounds nothing, the names of the checkpoints do: which epoch was best is compared as well.
    best = Path(t.checkpoint_callback.best_model_path).name  # type: ignore[union-attr]
    return {"logged": logged(folder), "tested": tested, "predicted": predicted.float(), "best": best}


def fit_in_bfloat16(device: str, folder: Path) -> dict[str, Any]:
    # Without dropout: PyTorch scales what is left in another order on devices other than the CPU.
    found = fit_test_and_predict(device, folder, dropout=0.0, precision="bf16-mixed")
    assert torch.equal(found["predicted"], found["predicted"].bfloat16().float())
    return found


def fit_and_resume(device: str, folder: Path) -> dict[str, Any]:
    model = Classifier()
    trainer(device, folder, max_epochs=1).fit(model, loader(96, 1), loader(48, 2))
    again = Classifier()
    t = trainer(device, folder / "resumed")
    last = folder / "checkpoints" / "last.ckpt"
    t.fit(again, loader(96, 1), loader(48, 2), ckpt_path=last)
    through = Classifier()
    trainer(device, folder / "through").fit(through, loader(96, 1), loader(48, 2))
    for name, wanted in through.network.state_dict().items():
        assert torch.equal(wanted, again.network.state_dict()[name]), f"{name} differs after the resume"
    loaded = Classifier.load_from_checkpoint(last, map_location=device, weights_only=False)
    assert loaded.device.type == device
    return {"resumed": logged(folder / "resumed"), "weights": again.network.state_dict()}


class TwoOptimizers(lightning.LightningModule):
    """Manual optimization: two networks that take turns, as in a GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = network(), network()
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        for part, optimizer in zip((self.first, self.second), self.optimizers(), strict=True):  # type: ignore[arg-type]
            self.toggle_optimizer(optimizer)
            loss = nn.functional.cross_entropy(part(x), y)
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, 0.5, "norm")
            optimizer.step()
            self.untoggle_optimizer(optimizer)
            self.losses.append(loss.item())

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.first.parameters(), 0.1), torch.optim.Adam(self.second.parameters(), 1e-2)]


def optimize_by_hand(device: str, folder: Path) -> list[float]:
    model = TwoOptimizers()
    t = lightning.Trainer(
        **placed(device),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    t.fit(model, loader(64, 1))
    return model.losses


def fabric_loop(device: str, folder: Path) -> dict[str, Any]:
    how: Any = {"accelerator": "cpu"} if device == "cpu" else {"strategy": TorchportFabricStrategy()}
    fabric = lightning.Fabric(**how, precision="bf16-mixed")
    fabric.launch()
    model = network()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    data = fabric.setup_dataloaders(loader(64, 1))
    losses = []
    for x, y in data:
        assert x.device.type == device
        loss = nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(fabric.all_reduce(loss.detach()).item())
    file = folder / "state.ckpt"
    fabric.save(file, {"model": model, "optimizer": optimizer})
    wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model.get_parameter("0.weight").zero_()
    fabric.load(file, {"model": model, "optimizer": optimizer})
    assert all(torch.equal(wanted[name], tensor) for name, tensor in model.state_dict().items())
    return {"losses": losses}


LIGHTNING = ("lightning", "torchmetrics")
CHANGE = "`strategy=TorchportStrategy()` of `torchport.integrations.lightning`"
CHECKS = [
    Check(
        LIGHTNING,
        "`Trainer` fits, validates, tests and predicts: checkpoints, early stopping, metrics, logs, clipping",
        CHANGE,
        fit_test_and_predict,
    ),
    Check(LIGHTNING, '`Trainer` with `precision="bf16-mixed"`', CHANGE, fit_in_bfloat16),
    Check(
        LIGHTNING,
        "`Trainer` resumes from a checkpoint: the same weights as without the interruption",
        CHANGE,
        fit_and_resume,
    ),
    Check(("lightning",), "`Trainer` with manual optimization and two optimizers", CHANGE, optimize_by_hand),
    Check(
        ("lightning",),
        '`Fabric` with `precision="bf16-mixed"`, saves and loads',
        "`strategy=TorchportFabricStrategy()` of `torchport.integrations.lightning`",
        fabric_loop,
    ),
]
