"""What the sweep does with a scheduler: ten steps of it and of an optimizer, saved and loaded after the fifth."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import optim
from torch.optim import lr_scheduler, swa_utils

import torchport
from sweeps.optimizer_program import SAVED_AFTER, STEPS, CompileCounter, make_task, reloaded
from sweeps.programs import Outcome, compared
from sweeps.records import SampleRecord

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": partial(optim.SGD, lr=0.1, momentum=0.9),
    "Adam": partial(optim.Adam, lr=0.01, foreach=False),
    "Adam-foreach": partial(optim.Adam, lr=0.01, foreach=True),
    "Adam-tensor": lambda p: optim.Adam(p, lr=torch.tensor(0.01)),
}
"""What the scheduler schedules; the last has its learning rate in a tensor, which schedulers write to."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler as a subject of the sweep."""

    name: str
    make: Callable[[optim.Optimizer], Any]


SCHEDULERS = [
    Scheduler(name, make)
    for name, make in {
        "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.95),
        "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
        "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3, 4, 7]),
        "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 6),
        "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 8),
        "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
        "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 7, power=2.0),
        "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
        "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
        "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, 2, cycle_momentum=False),
        "CyclicLR, exponential": lambda o: lr_scheduler.CyclicLR(
            o, 0.001, 0.1, 3, mode="exp_range", gamma=0.9, cycle_momentum=False
        ),
        "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
        "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, threshold=10.0),
        "SequentialLR": lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [4]
        ),
        "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(o, 0.1, 6), lr_scheduler.ExponentialLR(o, 0.9)]
        ),
        "SWALR": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=6),
    }.items()
]


def run_scheduler(
    scheduler: Scheduler,
    mode: str,
    dtype: torch.dtype,
    limit: int,
    started: Callable[[int], None],
    ended: Callable[[SampleRecord], None],
) -> None:
    """Runs the scheduler with one of :data:`OPTIMIZERS`; calls ``started`` before and ``ended`` after it."""
    started(0)
    ended(compared(0, partial(_scheduled, scheduler, mode, dtype)))


def _scheduled(scheduler: Scheduler, mode: str, dtype: torch.dtype, device: str) -> Outcome:
    make = OPTIMIZERS[mode]
    task = make_task(device, dtype)
    optimizer = make(task.parameters)
    schedule = scheduler.make(optimizer)
    outcome, losses, rates, counter = Outcome(), [], [], CompileCounter()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = task.loss()
        loss.backward()
        optimizer.step()
        # One reads what it is given, as a program that hands it a loss does.
        schedule.step(*([loss] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else []))
        torchport.sync()
        losses.append(loss.detach())
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        outcome.compiles.append(counter.since())
        if step == SAVED_AFTER - 1:
            file = io.BytesIO()
            torch.save(schedule.state_dict(), file)
            file.seek(0)
            task, optimizer = reloaded(make, task, optimizer, make_task(device, dtype))
            saved = optimizer.state_dict()
            schedule = scheduler.make(optimizer)
            optimizer.load_state_dict(saved)  # a new scheduler writes its first rate to the optimizer
            schedule.load_state_dict(torch.load(file, weights_only=False))  # a scheduler's state holds its classes
            torchport.sync()
            counter.since()
    outcome.device["losses"] = losses
    outcome.device["parameters"] = [p.detach() for p in task.parameters]
    outcome.host["learning rates"] = rates
    return outcome
