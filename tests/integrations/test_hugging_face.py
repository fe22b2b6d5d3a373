"""Hugging Face's ``Trainer`` and ``accelerate`` train on the device what they train on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from integrations.check import Check, D, run
from integrations.hugging_face import CHECKS, bert, chosen, losses_through_and_resumed, trainer


@pytest.mark.parametrize("check", CHECKS, ids=[c.program.__name__ for c in CHECKS])
def test_the_program_gives_what_it_gives_on_the_cpu(check: Check) -> None:
    outcome = run(check)
    assert {} == outcome.fallbacks


def test_without_the_callback_a_resumed_run_draws_other_numbers(tmp_path: Path) -> None:
    """When this fails, the trainer keeps the state of every device: RandomStateCallback is no longer needed."""
    with chosen(D):
        through, resumed = losses_through_and_resumed(tmp_path)
    assert through != resumed


def test_bf16_true_is_refused_by_the_trainer_itself(tmp_path: Path) -> None:
    """When this fails, docs/trainers.md need no longer speak of ACCELERATE_MIXED_PRECISION."""
    with chosen(D), pytest.raises(ValueError, match="Your setup doesn't support bf16/gpu"):
        trainer(tmp_path, bert(), [], bf16=True)


def test_fp16_is_refused_by_accelerate_itself(tmp_path: Path) -> None:
    """When this fails, docs/trainers.md need no longer say that it is."""
    with chosen(D, "fp16"), pytest.raises(ValueError, match="fp16 mixed precision requires a device in"):
        trainer(tmp_path, bert(), [])


def test_accelerate_needs_to_be_told_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, accelerate finds the device by itself: docs/trainers.md need no longer name the variable."""
    with chosen("cpu"):
        monkeypatch.delenv("ACCELERATE_TORCH_DEVICE")
        assert "cpu" == trainer(tmp_path, bert(), []).args.device.type
