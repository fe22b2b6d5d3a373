"""Every module, optimizer and scheduler on a few inputs in each run of the tests; all: ``tests/sweeps/training.py``.

Here in one process: forking from a test process that has threads would hang now and then.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from sweeps.more_modules import LEFT_OUT
from sweeps.programs import spread
from sweeps.records import OpResult, SampleRecord, Status
from sweeps.suites import MODULES, OPTIMIZERS_SUITE, SCHEDULERS_SUITE, SUITES, Suite

SAMPLES = {"modules": 2, "optimizers": 2, "schedulers": 1}
REFUSED = {("Adamax", "differentiable"), ("Rprop", "differentiable")}
"""What the CPU itself cannot do with any input: these write to what their own derivative needs."""
LBFGS_SAMPLES = 1  # each of its steps may be twenty


def subjects(suite: Suite) -> list[Any]:
    return [
        pytest.param(subject, mode, id=f"{subject.name}-{mode}")
        for subject in suite.subjects
        for mode in suite.modes
        if suite.takes_part(subject, mode) and (mode != "eval" or subject.train_and_eval_differ)
    ]


def check(suite: Suite, subject: Any, mode: str) -> None:
    """Everything is as on the CPU, or listed with a reason."""
    records: list[SampleRecord] = []
    samples = LBFGS_SAMPLES if subject.name == "LBFGS" else SAMPLES[suite.name]
    with torch.random.fork_rng(devices=[]):
        suite.run(subject, mode, torch.float32, samples, lambda index: None, records.append)
    result = OpResult(subject.name, mode, "float32", records)
    # That a listed failure is still there is for the whole sweep to say: it need not show on every input.
    unexpected = [f"{f.kind}: {f.text}" for f in suite.judge([result]).unexpected]
    assert [] == unexpected
    refused = {r.error for r in records if r.status is Status.SKIP}
    assert (subject.name, mode) in REFUSED or len(refused) < len(records), refused


@pytest.mark.parametrize(("info", "mode"), subjects(MODULES))
def test_a_module_gives_what_it_gives_on_the_cpu(info: Any, mode: str) -> None:
    check(MODULES, info, mode)


@pytest.mark.parametrize(("info", "mode"), subjects(OPTIMIZERS_SUITE))
def test_an_optimizer_trains_as_on_the_cpu_and_settles(info: Any, mode: str) -> None:
    check(OPTIMIZERS_SUITE, info, mode)


@pytest.mark.parametrize(("scheduler", "mode"), subjects(SCHEDULERS_SUITE))
def test_a_scheduler_trains_as_on_the_cpu_and_settles(scheduler: Any, mode: str) -> None:
    check(SCHEDULERS_SUITE, scheduler, mode)


def test_every_scheduler_of_this_pytorch_is_swept() -> None:
    classes = [*vars(lr_scheduler).values(), swa_utils.SWALR]
    wanted = {
        c.__name__
        for c in classes
        if inspect.isclass(c) and issubclass(c, lr_scheduler.LRScheduler) and not c.__name__.startswith("_")
    }
    assert wanted - {"LRScheduler"} <= {s.name for s in SCHEDULERS_SUITE.subjects}


def test_every_module_of_this_pytorch_is_swept() -> None:
    swept = {info.module_cls for info in MODULES.subjects}
    assert set(LEFT_OUT) == {name for name in nn.modules.__all__ if getattr(nn.modules, name) not in swept}


def test_what_is_expected_names_a_subject_and_a_mode_of_it() -> None:
    for suite in SUITES.values():
        names = {s.name: s for s in suite.subjects}
        for expected in (*suite.failures, *suite.fallbacks):
            assert all(suite.takes_part(names[expected.op], mode) for mode in expected.modes)
            assert expected.modes <= set(suite.modes)
            assert expected.reason


def test_inputs_are_chosen_from_the_first_to_the_last() -> None:
    assert [(0, "a"), (2, "c"), (4, "e")] == spread(list("abcde"), 3)
    assert [(0, "a")] == spread(list("abcde"), 1)
    assert [(0, "a"), (1, "b")] == spread(list("ab"), 9)
