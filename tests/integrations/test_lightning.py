"""Lightning trains on the device what it trains on the CPU."""

from __future__ import annotations

import csv
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from integrations.check import Check, D, run
from integrations.lightning_programs import CHECKS, Classifier, trainer
from integrations.toy_data import loader
from torchport.integrations.lightning import TorchportAccelerator, TorchportStrategy

pytestmark = [
    # Lightning's own code, written for an older PyTorch.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    # Advice on speed, which such small programs do not follow.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    # A run that resumes in another folder than it stopped in: the checkpoints must be told apart.
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}


@pytest.mark.parametrize("check", CHECKS, ids=[c.program.__name__ for c in CHECKS])
def test_the_program_gives_what_it_gives_on_the_cpu(check: Check) -> None:
    outcome = run(check)
    assert {} == outcome.fallbacks


def test_the_device_is_chosen_by_name() -> None:
    t = lightning.Trainer(accelerator=D, strategy=D, devices=1, **QUIET)
    assert isinstance(t.accelerator, TorchportAccelerator)
    assert isinstance(t.strategy, TorchportStrategy)
    assert torch.device(D, 0) == t.strategy.root_device
    assert D == lightning.Fabric(accelerator=D, strategy=D, devices="auto").device.type


def test_the_accelerator_alone_says_what_is_missing() -> None:
    t = lightning.Trainer(accelerator=D, enable_checkpointing=False, **QUIET)
    with pytest.raises(MisconfigurationException, match=rf'Use Trainer\(accelerator="{D}", strategy="{D}"\)'):
        t.fit(Classifier(), loader(16, 1), loader(16, 2))


@pytest.mark.parametrize("devices", [2, [1], "0,1"])
def test_there_is_one_device(devices: object) -> None:
    with pytest.raises(MisconfigurationException, match=f"there is one device, {D}:0; use devices=1"):
        lightning.Trainer(accelerator=D, strategy=D, devices=devices, **QUIET)


def test_float16_is_scaled_as_on_cuda(tmp_path: Path) -> None:
    t = trainer(D, tmp_path, max_epochs=1, plugins=MixedPrecision("16-mixed", D))
    model = Classifier()
    t.fit(model, loader(48, 1), loader(16, 2))
    state = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=False)["MixedPrecision"]
    # Two optimizer steps: one of two batches, one of what was left of the epoch.
    assert (65536.0, 2) == (state["scale"], state["_growth_tracker"])
    assert torch.isfinite(torch.as_tensor(t.callback_metrics["train_loss_epoch"]))


def test_mixed_precision_that_the_trainer_made_for_cuda_is_made_for_the_device() -> None:
    strategy = TorchportStrategy()
    strategy.precision_plugin = MixedPrecision("bf16-mixed", "cuda")
    assert D == strategy.precision_plugin.device


def test_the_devices_memory_is_logged(tmp_path: Path) -> None:
    trainer(D, tmp_path, max_epochs=1).fit(Classifier(), loader(32, 1), loader(16, 2))
    with (tmp_path / "log" / "metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure = "DeviceStatsMonitor.on_train_batch_end/allocated_bytes.all.current"
    assert any(float(row[figure]) > 0 for row in rows if row.get(figure))
