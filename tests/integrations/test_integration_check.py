"""What the checks of trainers would find: another number, another form, a program that never came to the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from integrations.check import Check, D, run


def check(program: Callable[[str], Any]) -> Check:
    return Check(("torch",), "a program", "none", lambda device, folder: program(device))


def test_an_equal_program_is_counted() -> None:
    outcome = run(check(lambda device: {"x": torch.ones(3, device=device) * 2, "loss": 0.25, "steps": 4}))
    assert (0.0, 4, {}) == (outcome.difference, outcome.numbers, outcome.fallbacks)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda device: (torch.ones(2, device=device) + (device == D) * 1e-3).cpu(), "not close"),
        (lambda device: {"loss": (torch.ones((), device=device) + (device == D) * 1e-3).item()}, "not close"),
        (lambda device: [torch.ones(2, device=device).add(1).tolist()] * (1 + (device == D)), "another form"),
        (lambda device: {"best": f"epoch {torch.ones((), device=device).item() + (device == D)}"}, "best"),
        (lambda device: torch.ones(2), "nothing was executed on"),
    ],
    ids=["a tensor", "a number", "the form", "a text", "the CPU"],
)
def test_a_difference_is_found(program: Callable[[str], Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(check(program))


def test_each_device_has_an_empty_folder_and_the_same_random_numbers() -> None:
    def program(device: str, folder: Path) -> float:
        assert [] == list(folder.iterdir())
        (folder / "file").touch()
        return (torch.rand((), device="cpu").to(device) + 1).item()

    assert 0.0 == run(Check(("torch",), "a program", "none", program)).difference
