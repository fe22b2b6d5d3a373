"""Ties, moves and optimizers: what is one object stays one, and trains as on the CPU (case 20)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import torchport
from lazy.cases.oracle import D as DEVICE
from lazy.cases.oracle import check, compare, data, digits, made

Sync = Callable[[], None]

# -- 20: ties --------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """An embedding whose weight is also the output layer's, and a buffer that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)
        self.out = nn.Linear(3, 7, bias=False)
        self.out.weight = self.table.weight
        self.register_buffer("scale", torch.ones(3))
        self.inner = nn.Module()
        self.inner.register_buffer("scale", self.scale)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(index) * self.scale)


def test_tied_weights_stay_tied_on_the_way_to_the_device_and_back() -> None:
    model = Tied().to(DEVICE)
    assert model.out.weight is model.table.weight
    assert len(list(model.parameters())) == 1
    model.to("cpu")
    assert model.out.weight is model.table.weight


def test_an_optimizer_made_before_the_move_trains_the_moved_weights() -> None:
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    parameter = model.weight
    model.to(DEVICE)
    assert model.weight is parameter, "as on other devices, the Parameter object is the same"
    before = model.weight.detach().cpu().clone()
    model(torch.ones(1, 2, device=DEVICE)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight.detach().cpu(), before)


def test_tied_weights_train_as_one(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        model = made(Tied, D)
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(digits(D, 7, 5)), digits(D, 7, 5, seed=2)).backward()
            optimizer.step()
            sync()
        return [p.detach() for p in model.parameters()]

    check(program, barrier)


@pytest.mark.parametrize(
    "how", ["to", "float then half", "to_empty", "apply", "cpu", "requires_grad_", "device module"]
)
def test_moving_a_module(how: str) -> None:
    module = nn.Linear(3, 2)
    if how == "to":
        module.to(DEVICE)
    elif how == "float then half":
        module.to(DEVICE, torch.float64).half()
        assert module.weight.dtype is torch.float16
    elif how == "to_empty":
        module.to_empty(device=DEVICE)
    elif how == "apply":
        module._apply(lambda t: t.to(DEVICE))
    elif how == "cpu":
        module.to(DEVICE).cpu().to(DEVICE)
    elif how == "requires_grad_":
        module.to(DEVICE).requires_grad_(False)
    elif how == "device module":
        with torch.device(DEVICE):
            module = nn.Linear(3, 2)
    assert all(p.device.type == torch.device(DEVICE).type for p in module.parameters())
    assert all(isinstance(p, nn.Parameter) and p.is_leaf for p in module.parameters())


def test_channels_last_weights_and_inputs_keep_their_layout(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        conv = made(lambda: nn.Conv2d(3, 4, 3), D).to(memory_format=torch.channels_last)
        x = data(D, 2, 3, 6, 6).to(memory_format=torch.channels_last)
        sync()
        y = conv(x)
        y.sum().backward()
        return x, y, conv.weight

    check(program, barrier)


# -- 20: optimizers --------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD maximize": partial(optim.SGD, lr=0.1, maximize=True, momentum=0.5, dampening=0.2),
    "Adam": partial(optim.Adam, lr=0.05, weight_decay=0.1),
    "Adam amsgrad": partial(optim.Adam, lr=0.05, amsgrad=True),
    "AdamW": partial(optim.AdamW, lr=0.05),
    "NAdam": partial(optim.NAdam, lr=0.05),
    "RAdam": partial(optim.RAdam, lr=0.05),
    "Adamax": partial(optim.Adamax, lr=0.05),
    "Adagrad": partial(optim.Adagrad, lr=0.1, lr_decay=0.1),
    "Adadelta": partial(optim.Adadelta, lr=1.0),
    "ASGD": partial(optim.ASGD, lr=0.1),
    "RMSprop": partial(optim.RMSprop, lr=0.05, centered=True, momentum=0.3),
    "Rprop": partial(optim.Rprop, lr=0.05),
}


@pytest.mark.parametrize("foreach", [False, True, None])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_ends_where_it_ends_on_the_cpu(name: str, foreach: bool | None, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), D)
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}]
        optimizer = OPTIMIZERS[name](groups, foreach=foreach)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(data(D, 5, 3)).square().mean()
            loss.backward()
            sync()
            optimizer.step()
            losses.append(loss)
        # Adam's step counter lives on the host on every device unless it is capturable; so all are read on the host
        entries = [
            [v.cpu() if isinstance(v, torch.Tensor) else v for v in s.values()]
            for s in optimizer.state_dict()["state"].values()
        ]
        return [v.detach().cpu() for v in losses], [p.detach().cpu() for p in model.parameters()], entries

    check(program, barrier, on_device=False)


@pytest.mark.parametrize("capturable", [False, True])
def test_adam_with_its_step_on_the_device(capturable: bool, barrier: str) -> None:
    weight = nn.Parameter(data(DEVICE, 4))
    optimizer = optim.Adam([weight], lr=0.1, capturable=capturable)
    for _ in range(2):
        weight.grad = data(DEVICE, 4, seed=2)
        optimizer.step()
    assert optimizer.state[weight]["step"].device.type == (torch.device(DEVICE).type if capturable else "cpu")
    reference = nn.Parameter(data("cpu", 4))
    plain = optim.Adam([reference], lr=0.1)
    for _ in range(2):
        reference.grad = data("cpu", 4, seed=2)
        plain.step()
    if barrier != "no barrier":
        torchport.sync()
    compare(reference.detach(), weight.detach())


def test_lbfgs_ends_where_it_ends_on_the_cpu() -> None:
    def program(D: str, sync: Sync) -> object:
        weight = nn.Parameter(data(D, 4))
        optimizer = optim.LBFGS([weight], lr=0.5, max_iter=5, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (weight - torch.arange(4.0, device=D)).pow(4).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return weight.detach()

    check(program, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["Muon", "Adafactor"])
def test_the_newer_optimizers_end_where_they_end_on_the_cpu(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        weight = nn.Parameter(data(D, 6, 4))
        optimizer = getattr(optim, name)([weight], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            (data(D, 5, 6) @ weight).square().mean().backward()
            optimizer.step()
            sync()
        return weight.detach()

    check(program, barrier, rtol=1e-3, atol=1e-4)


def test_an_optimizers_state_moves_with_its_saved_form() -> None:
    model = made(lambda: nn.Linear(3, 2), DEVICE)
    optimizer = optim.Adam(model.parameters())
    model(data(DEVICE, 4, 3)).sum().backward()
    optimizer.step()
    other = made(lambda: nn.Linear(3, 2), "cpu")
    restored = optim.Adam(other.parameters())
    restored.load_state_dict(optimizer.state_dict())
    for s in restored.state.values():
        assert s["exp_avg"].device.type == "cpu"
    again = optim.Adam(model.parameters())
    again.load_state_dict(restored.state_dict())
    for s in again.state.values():
        assert s["exp_avg"].device.type == torch.device(DEVICE).type
