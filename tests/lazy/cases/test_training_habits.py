"""What training programs do besides a plain step: it ends as on the CPU, and compiles nothing once it has settled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler, swa_utils
from torch.utils.checkpoint import checkpoint

import torchport
from lazy.cases.oracle import D as DEVICE
from lazy.cases.oracle import compare, data, made, no_compile

STEPS = 10


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def settles(device: str, step: Callable[[int], object], after: int = 3) -> None:
    """Does ten steps, of which those after the first ones compile nothing."""
    for i in range(STEPS):
        with no_compile() if i >= after and device != "cpu" else nullcontext():
            step(i)
            torchport.sync()


def values(*modules: nn.Module) -> list[torch.Tensor]:
    return [p.detach() for m in modules for p in m.parameters()]


def fit(model: nn.Module, device: str, seed: int = 1) -> None:
    """One loss and its gradients."""
    model(data(device, 5, 4, seed=seed)).square().sum().backward()


def penalty_on_a_gradient(device: str) -> Any:
    model = made(network, device)
    optimizer = optim.Adam(model.parameters(), lr=0.01)

    def step(i: int) -> None:
        optimizer.zero_grad()
        x = data(device, 5, 4, seed=i).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        ((gradient.norm(2, 1) - 1) ** 2).mean().backward()
        optimizer.step()

    settles(device, step)
    return values(model)


def layers_frozen_in_turn(device: str) -> Any:
    model = made(network, device)
    optimizer = optim.Adam(model.parameters(), lr=0.01)

    def step(i: int) -> None:
        model[0].requires_grad_(i % 2 == 0)  # type: ignore[index]  # a Sequential
        optimizer.zero_grad()
        fit(model, device)
        optimizer.step()

    settles(device, step, after=4)
    return values(model)


def accumulated(device: str, set_to_none: bool) -> Any:
    model = made(network, device)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(i: int) -> None:
        for k in range(3):
            fit(model, device, seed=k)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)

    settles(device, step)
    return values(model)


def checkpointed(device: str, use_reentrant: bool) -> Any:
    model = made(lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 3)), device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(i: int) -> None:
        optimizer.zero_grad()
        torch.manual_seed(i)
        x = data(device, 5, 4).requires_grad_()
        checkpoint(model, x, use_reentrant=use_reentrant).square().sum().backward()
        optimizer.step()

    settles(device, step)
    return values(model)


def step_written_by_hand(device: str) -> Any:
    model = made(network, device)

    def step(i: int) -> None:
        model.zero_grad()
        fit(model, device)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad

    settles(device, step)
    return values(model)


def average_written_by_hand(device: str) -> Any:
    model = made(network, device)
    average = copy.deepcopy(model)
    optimizer = optim.Adam(model.parameters())

    def step(i: int) -> None:
        optimizer.zero_grad()
        fit(model, device)
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(average.parameters(), model.parameters(), strict=True):
                p.lerp_(q, 0.1)
            torch._foreach_mul_(list(average.parameters()), 0.9)
            torch._foreach_add_(list(average.parameters()), list(model.parameters()), alpha=0.1)

    settles(device, step)
    return values(average)


def average_of_the_last_steps(device: str) -> Any:
    model = made(network, device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    average = swa_utils.AveragedModel(model)
    first = lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    last = swa_utils.SWALR(optimizer, 0.05, anneal_epochs=3)

    def step(i: int) -> None:
        optimizer.zero_grad()
        fit(model, device, seed=i)
        optimizer.step()
        if i > 2:
            average.update_parameters(model)
            last.step()
        else:
            first.step()

    settles(device, step, after=5)
    return values(average.module)


def two_networks_against_each_other(device: str) -> Any:
    makes = made(lambda: nn.Sequential(nn.Linear(3, 5), nn.LeakyReLU(0.2), nn.Linear(5, 4)), device)
    judges = made(lambda: nn.Sequential(nn.Linear(4, 5), nn.LeakyReLU(0.2), nn.Linear(5, 1)), device)
    optimizers = optim.Adam(makes.parameters(), 2e-3, betas=(0.5, 0.9)), optim.Adam(judges.parameters(), 2e-3)
    loss = F.binary_cross_entropy_with_logits
    yes, no = torch.ones(6, 1, device=device), torch.zeros(6, 1, device=device)

    def step(i: int) -> None:
        z, real = data(device, 6, 3, seed=i), data(device, 6, 4, seed=i + 50)
        optimizers[1].zero_grad()
        (loss(judges(real), yes) + loss(judges(makes(z).detach()), no)).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss(judges(makes(z)), yes).backward()
        optimizers[0].step()

    settles(device, step)
    return values(makes, judges)


def taught_by_another(device: str) -> Any:
    teacher = made(network, device).eval().requires_grad_(False)
    model = nn.Sequential(made(network, device), nn.Hardtanh())
    optimizer = optim.NAdam(model.parameters())

    def step(i: int) -> None:
        x = data(device, 5, 4, seed=i)
        optimizer.zero_grad()
        F.kl_div(model(x).log_softmax(1), teacher(x).softmax(1), reduction="batchmean").backward()
        optimizer.step()

    settles(device, step)
    return values(model)


def stepped_within_the_backward(device: str) -> Any:
    model = made(network, device)
    optimizers = {p: optim.Adam([p]) for p in model.parameters()}

    def update(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    settles(device, lambda i: fit(model, device, seed=i))
    return values(model)


def a_group_that_is_added_later(device: str) -> Any:
    model = made(network, device)
    first, last = model[0], model[2]  # type: ignore[index]  # a Sequential
    optimizer = optim.SGD(first.parameters(), lr=0.1, momentum=0.9)

    def step(i: int) -> None:
        if i == 2:
            optimizer.add_param_group({"params": last.parameters(), "lr": 0.01})
        optimizer.zero_grad()
        fit(model, device, seed=i)
        optimizer.step()

    settles(device, step, after=5)
    return values(model)


def parameters_without_a_gradient(device: str) -> Any:
    model = made(network, device)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)

    def step(i: int) -> None:
        optimizer.zero_grad()
        fit(model[0], device, seed=i)  # type: ignore[index]  # a Sequential
        optimizer.step()

    settles(device, step)
    return values(model)


def hooks_around_a_step(device: str) -> Any:
    model = made(network, device)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    weight, seen = next(model.parameters()), []
    optimizer.register_step_pre_hook(lambda *_: seen.append(weight.grad.clone()))
    optimizer.register_step_post_hook(lambda *_: seen.append(weight.detach().clone()))
    for _ in range(3):
        optimizer.zero_grad()
        fit(model, device)
        optimizer.step()
    return seen


def copies_of_both(device: str) -> Any:
    model = made(network, device)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    fit(model, device)
    optimizer.step()
    pairs = [(model, optimizer), copy.deepcopy((model, optimizer))]
    for i, (m, o) in enumerate(pairs):
        o.zero_grad()
        fit(m, device, seed=i)
        o.step()
    return values(*[m for m, _ in pairs])


HABITS: dict[str, Callable[[str], Any]] = {
    "penalty on a gradient": penalty_on_a_gradient,
    "layers frozen in turn": layers_frozen_in_turn,
    "gradients accumulated": lambda d: accumulated(d, set_to_none=True),
    "gradients accumulated and zeroed": lambda d: accumulated(d, set_to_none=False),
    "activations checkpointed": lambda d: checkpointed(d, use_reentrant=False),
    "activations checkpointed, reentrant": lambda d: checkpointed(d, use_reentrant=True),
    "step written by hand": step_written_by_hand,
    "average written by hand": average_written_by_hand,
    "average of the last steps": average_of_the_last_steps,
    "two networks against each other": two_networks_against_each_other,
    "taught by another": taught_by_another,
    "stepped within the backward": stepped_within_the_backward,
    "a group that is added later": a_group_that_is_added_later,
    "parameters without a gradient": parameters_without_a_gradient,
    "hooks around a step": hooks_around_a_step,
    "copies of both": copies_of_both,
}


@pytest.mark.parametrize("name", HABITS)
def test_a_habit_of_training_programs_ends_as_on_the_cpu(name: str) -> None:
    before = torchport.executed_fallback_ops()
    compare(HABITS[name]("cpu"), HABITS[name](DEVICE))
    assert before == torchport.executed_fallback_ops()
