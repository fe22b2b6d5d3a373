"""Training loops that must not compile again after a warm-up of two steps (case 13)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler

import torchport
from lazy.cases.oracle import D, counted, data, digits, no_compile

Optimizer = Callable[..., optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD momentum": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.1),
    "SGD nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD maximize": partial(optim.SGD, lr=0.1, maximize=True),
    "Adam": partial(optim.Adam, lr=0.01),
    "Adam amsgrad": partial(optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.1),
    "Adam lr as a tensor": lambda p, **kw: optim.Adam(p, lr=torch.tensor(0.01), **kw),
    "Adam, lr equals eps": partial(optim.Adam, lr=1e-8, eps=1e-8),
    "AdamW": partial(optim.AdamW, lr=0.01),
    "NAdam": partial(optim.NAdam, lr=0.01),
    "RAdam": partial(optim.RAdam, lr=0.01),
    "Adamax": partial(optim.Adamax, lr=0.01),
    "Adagrad": partial(optim.Adagrad, lr=0.05),
    "Adadelta": partial(optim.Adadelta),
    "ASGD": partial(optim.ASGD, lr=0.05),
    "RMSprop": partial(optim.RMSprop, lr=0.01),
    "RMSprop centered": partial(optim.RMSprop, lr=0.01, centered=True, momentum=0.9),
    "Rprop": partial(optim.Rprop, lr=0.01),
}


class Task:
    """A small regression: a model on the device, and one training step."""

    def __init__(self, optimizer: Optimizer, device: str = D, dropout: float = 0.0, **kwargs: Any) -> None:
        rows = [data("cpu", *sizes, seed=i) * 0.3 for i, sizes in enumerate([(8, 6), (8,), (3, 8), (3,)])]
        self.model = nn.Sequential(
            nn.Linear(6, 8, device="meta"), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3, device="meta")
        ).to_empty(device=device)
        self.model.load_state_dict(dict(zip(self.model.state_dict(), rows, strict=True)))
        self.optimizer = optimizer(self.model.parameters(), **kwargs)
        self.x, self.y = data(device, 16, 6, seed=9), data(device, 16, 3, seed=10)

    def loss(self) -> torch.Tensor:
        return F.mse_loss(self.model(self.x), self.y)

    def step(self, after_backward: Callable[[], object] = lambda: None) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        after_backward()
        self.optimizer.step()
        torchport.sync()
        return loss.detach()


def warm_then_count(step: Callable[[], object], warm_up: int = 2, steps: int = 5) -> None:
    """No compile after the warm-up."""
    for _ in range(warm_up):
        step()
    with no_compile():
        for _ in range(steps):
            step()


@pytest.mark.parametrize("foreach", [False, True, None])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_compiles_nothing_after_two_steps_and_trains_as_on_the_cpu(
    name: str, foreach: bool | None
) -> None:
    if name == "Adam lr as a tensor" and foreach:
        pytest.skip("torch itself refuses a tensor as lr with foreach outside capturable")
    task = Task(OPTIMIZERS[name], foreach=foreach)
    reference = Task(OPTIMIZERS[name], "cpu", foreach=foreach)
    # RAdam decides in Python, at its sixth step, to go on with another formula.
    warm_up = 6 if name == "RAdam" else 2
    losses, wanted = [], [reference.step() for _ in range(warm_up + 5)]
    warm_then_count(lambda: losses.append(task.step()), warm_up)
    torch.testing.assert_close(torch.stack(losses).cpu(), torch.stack(wanted))
    for p, q in zip(task.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach())


def test_an_unmodified_loop_compiles_nothing_after_two_steps() -> None:
    task = Task(OPTIMIZERS["Adam"])

    def step() -> None:  # no explicit barrier: optimizer.step() is one
        task.optimizer.zero_grad()
        task.loss().backward()
        task.optimizer.step()

    warm_then_count(step)


def test_reading_the_loss_every_step_compiles_nothing_more() -> None:
    task = Task(OPTIMIZERS["AdamW"])
    losses: list[float] = []
    warm_then_count(lambda: losses.append(task.step().item()))
    assert losses == sorted(losses, reverse=True)


def test_reading_the_loss_only_sometimes_compiles_nothing_more() -> None:
    task = Task(OPTIMIZERS["SGD"])
    losses = [task.step() for _ in range(2)]
    losses[0].item()
    with no_compile():
        for i in range(6):
            loss = task.step()
            if i % 3 == 0:
                loss.item()


def test_lbfgs_with_a_closure_settles() -> None:
    task = Task(partial(optim.LBFGS, max_iter=3, history_size=2))

    def closure() -> torch.Tensor:
        task.optimizer.zero_grad()
        loss = task.loss()
        loss.backward()
        return loss

    def step() -> None:
        task.optimizer.step(closure)
        torchport.sync()

    warm_then_count(step, warm_up=4, steps=3)


# PyTorch says once per process that it does not check sparse tensors unless asked to.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_adam_settles() -> None:
    table = nn.Embedding(10, 4, sparse=True, device=D)
    optimizer = optim.SparseAdam(table.parameters(), lr=0.1)
    index = digits(D, 10, 6)

    def step() -> None:
        optimizer.zero_grad()
        table(index).pow(2).sum().backward()
        optimizer.step()
        torchport.sync()

    warm_then_count(step)


@pytest.mark.parametrize("name", ["Muon", "Adafactor"])
def test_the_newer_optimizers_settle(name: str) -> None:
    weight = nn.Parameter(data(D, 8, 6))
    x = data(D, 4, 6, seed=3)
    optimizer = getattr(optim, name)([weight], lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        (x @ weight.t()).square().mean().backward()
        optimizer.step()
        torchport.sync()

    warm_then_count(step)


SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.95),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, 2, cycle_momentum=False),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "to zero and back": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: float(epoch % 2)),
    "to one": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / o.defaults["lr"] if epoch == 3 else 0.5),
    "lr equals eps by chance": lambda o: lr_scheduler.LambdaLR(
        o, lambda epoch: 1e-8 / o.defaults["lr"] if epoch == 3 else 1.0
    ),
    "an integer lr": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1),
}


def test_every_scheduler_of_this_pytorch_is_tried() -> None:
    classes = {
        name
        for name, value in vars(lr_scheduler).items()
        if isinstance(value, type) and issubclass(value, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert classes - {"LRScheduler"} <= set(SCHEDULERS)


@pytest.mark.parametrize("optimizer", ["SGD momentum", "Adam"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_learning_rate_that_changes_compiles_nothing(name: str, optimizer: str) -> None:
    task, reference = Task(OPTIMIZERS[optimizer]), Task(OPTIMIZERS[optimizer], "cpu")
    schedule, wanted = SCHEDULERS[name](task.optimizer), SCHEDULERS[name](reference.optimizer)
    takes_a_loss = name == "ReduceLROnPlateau"

    def step() -> None:
        task.step()
        schedule.step(*([1.0] if takes_a_loss else []))
        reference.step()
        wanted.step(*([1.0] if takes_a_loss else []))

    warm_then_count(step)
    for p, q in zip(task.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach())


NUMBERS: dict[str, Callable[[torch.Tensor, float, int], torch.Tensor]] = {
    "add and multiply": lambda x, f, i: (x + f) * i - 1,
    "int and float": lambda x, f, i: x * float(i) + int(f),
    "alpha": lambda x, f, i: torch.add(x, x, alpha=f),
    "comparison": lambda x, f, i: (x > f).float(),
    "clamp": lambda x, f, i: x.clamp(-f, f),
    "fill": lambda x, f, i: torch.full_like(x, f) + x,
    "full": lambda x, f, i: torch.full((4,), f, device=x.device),
    "a scalar tensor": lambda x, f, i: x + torch.tensor(f, device=x.device),
    "a cpu scalar tensor": lambda x, f, i: x * torch.tensor(f),
    "where": lambda x, f, i: torch.where(x > 0, x, f),
    "masked_fill": lambda x, f, i: x.masked_fill(x > 0, f),
    "addcmul": lambda x, f, i: torch.addcmul(x, x, x, value=f),
    "lerp": lambda x, f, i: torch.lerp(x, x * 2, f),
    "leaky_relu": lambda x, f, i: F.leaky_relu(x, f),
    "item written in place": lambda x, f, i: x.clone().fill_(f).add_(i),
    "set an element": lambda x, f, i: _with_element(x, f),
    "pow with a base": lambda x, f, i: f**x,
}


def _with_element(x: torch.Tensor, value: float) -> torch.Tensor:
    y = x.clone()
    y[1] = value
    return y


@pytest.mark.parametrize("name", NUMBERS)
def test_python_numbers_that_change_compile_nothing(name: str) -> None:
    x = data(D, 4)
    values = [(0.5, 3), (1.0, 7), (2.0, 1), (1.5, 2), (math.pi, 9), (0.25, 4), (1e-8, 100)]
    for f, i in values[:2]:
        NUMBERS[name](x, f, i).cpu()
    with no_compile():
        for f, i in values[2:]:
            torch.testing.assert_close(NUMBERS[name](x, f, i).cpu(), NUMBERS[name](x.cpu(), f, i))


def test_two_numbers_that_become_equal_are_not_taken_for_one() -> None:
    x = data(D, 4)
    for f, g in [(0.5, 0.25), (1.0, 1.0), (0.25, 0.5), (0.0, 1.0)]:
        torch.testing.assert_close(((x + f) * g).cpu(), (x.cpu() + f) * g)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_in_training_compiles_nothing_after_two_steps(p: float) -> None:
    task = Task(OPTIMIZERS["Adam"], dropout=p)
    warm_then_count(task.step)


def test_a_dropout_rate_that_is_annealed_costs_at_most_one_compile_for_each_rate() -> None:
    task = Task(OPTIMIZERS["SGD"], dropout=0.1)
    for _ in range(2):
        task.step()
    with counted("UncachedCompile") as compiles:
        for rate in (0.2, 0.3, 0.2, 0.3):
            task.model[2].p = rate
            task.step()
    assert compiles[0] <= 2


@pytest.mark.parametrize("barrier_each", [False, True])
def test_gradient_accumulation_compiles_nothing_after_two_steps(barrier_each: bool) -> None:
    task = Task(OPTIMIZERS["Adam"])

    def step() -> None:
        task.optimizer.zero_grad()
        for _ in range(3):
            (task.loss() / 3).backward()
            if barrier_each:
                torchport.sync()
        task.optimizer.step()
        torchport.sync()

    warm_then_count(step)


@pytest.mark.parametrize("set_to_none", [False, True])
def test_zero_grad_either_way_compiles_nothing_after_two_steps(set_to_none: bool) -> None:
    task = Task(OPTIMIZERS["SGD momentum"])

    def step() -> None:
        task.optimizer.zero_grad(set_to_none=set_to_none)
        task.loss().backward()
        task.optimizer.step()
        torchport.sync()

    warm_then_count(step)


@pytest.mark.parametrize("foreach", [True, False, None])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("bound", [0.01, 1e6])
def test_clipping_gradients_compiles_nothing_after_two_steps(
    foreach: bool | None, norm_type: float, bound: float
) -> None:
    task, reference = Task(OPTIMIZERS["Adam"]), Task(OPTIMIZERS["Adam"], "cpu")

    def clip(task: Task) -> None:
        norms.append(nn.utils.clip_grad_norm_(task.model.parameters(), bound, norm_type, foreach=foreach))

    norms: list[torch.Tensor] = []
    warm_then_count(lambda: task.step(lambda: clip(task)))
    ours, norms = norms, []
    for _ in range(7):
        reference.step(lambda: clip(reference))
    torch.testing.assert_close(torch.stack(ours).cpu(), torch.stack(norms))


@pytest.mark.parametrize("foreach", [True, False, None])
def test_clipping_values_compiles_nothing_after_two_steps(foreach: bool | None) -> None:
    task = Task(OPTIMIZERS["SGD"])
    clip = partial(nn.utils.clip_grad_value_, list(task.model.parameters()), 0.01, foreach=foreach)
    warm_then_count(lambda: task.step(clip))


def test_an_average_of_the_weights_compiles_nothing_after_two_steps() -> None:
    task = Task(OPTIMIZERS["SGD"])
    average = optim.swa_utils.AveragedModel(task.model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def step() -> None:
        task.step()
        average.update_parameters(task.model)
        torchport.sync()

    warm_then_count(step, warm_up=3)


def test_evaluation_between_epochs_compiles_once() -> None:
    task = Task(OPTIMIZERS["Adam"], dropout=0.2)

    def epoch() -> None:
        task.model.train()
        for _ in range(2):
            task.step()
        task.model.eval()
        with torch.no_grad():
            task.loss().item()

    warm_then_count(epoch, warm_up=2, steps=3)


def test_results_that_are_written_in_another_order_compile_nothing() -> None:
    x = data(D, 4)

    def program(order: tuple[int, int]) -> list[torch.Tensor]:
        written = [torch.empty(4, device=D) for _ in order]
        torchport.sync()
        values = [x + 1, x * 2]
        for i in order:
            written[i].copy_(values[i])  # no operation: both are the same value then
        del values
        torchport.sync()
        return written

    wanted = program((0, 1))
    with no_compile():
        found = program((1, 0))
    torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in wanted])
