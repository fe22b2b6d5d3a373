"""Diffusion: a step of training, and sampling."""

from __future__ import annotations

import pytest
import torch

import torchport
from lazy.cases.oracle import D, no_compile, seed_everything
from models.checks import checks_of, each_run
from models.diffusion import SCHEDULERS, SUBJECTS, sampled
from models.runs import made
from models.subjects import Subject


@pytest.mark.parametrize(("subject", "check"), each_run(SUBJECTS), ids=str)
def test_a_model_of_noise(subject: Subject, check: str) -> None:
    checks_of(subject)[check]()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_sampling_gives_the_cpus_pictures_and_compiles_nothing_the_second_time(name: str) -> None:
    pictures = []
    fallbacks = torchport.executed_fallback_ops()
    for device in ("cpu", D):
        model = made(SUBJECTS[0]).to(device).eval()
        seed_everything()
        pictures.append(sampled(model, SCHEDULERS[name], device, 8).cpu())
    torch.testing.assert_close(pictures[1], pictures[0])
    assert fallbacks == torchport.executed_fallback_ops()
    with no_compile():
        sampled(model, SCHEDULERS[name], D, 8).cpu()
