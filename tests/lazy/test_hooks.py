"""Hooks, checkpointing, functions with gradients of their own, anomaly mode: the user's code inside autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torchport
from lazy.cases.oracle import BARRIERS, D, Program, check, compare, data, made

Sync = Callable[[], None]


@pytest.fixture(params=BARRIERS)
def barrier(request: pytest.FixtureRequest) -> str:
    """Where the program meets a barrier."""
    return str(request.param)


# -- hooks -----------------------------------------------------------------------------------------------------------


def tensor_hooks(D: str, sync: Sync) -> object:
    seen: list[torch.Tensor] = []
    x = data(D, 3).requires_grad_()
    x.register_hook(lambda g: seen.append(g) or g * 2)
    y = x * 3
    y.register_hook(lambda g: g + 1)
    removed = y.register_hook(lambda g: g * 100)
    removed.remove()
    sync()
    y.square().sum().backward()
    return x.grad, seen


def accumulation_hooks(D: str, sync: Sync) -> object:
    seen: list[torch.Tensor] = []

    def halve(p: torch.Tensor) -> None:
        seen.append(p.grad.clone())
        p.grad.mul_(0.5)

    x = data(D, 3).requires_grad_()
    x.register_post_accumulate_grad_hook(halve)
    for _ in range(2):
        x.sin().sum().backward()
        sync()
    return x.grad, seen


def module_hooks(D: str, sync: Sync) -> object:
    seen: list[Any] = []
    layer = made(lambda: nn.Linear(3, 2), D)
    layer.register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    layer.register_forward_hook(lambda m, a, y: y + 1)
    layer.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].clone()) or (gi[0] * 3,))
    layer.register_full_backward_pre_hook(lambda m, go: (go[0] * 0.5,))
    x = data(D, 4, 3).requires_grad_()
    y = layer(x)
    sync()
    y.square().sum().backward()
    return y, x.grad, seen, [p.grad for p in layer.parameters()]


def saved_tensors_packed(D: str, sync: Sync) -> object:
    x = data(D, 3).requires_grad_()
    with saved_tensors_hooks(lambda t: t.detach() * 1, lambda t: t * 2):
        y = x.exp() * x
    sync()
    y.sum().backward()
    return x.grad


def saved_on_the_host(D: str, sync: Sync) -> object:
    x = data(D, 3, 3).requires_grad_()
    with save_on_cpu():
        y = (x @ x).tanh()
    sync()
    y.sum().backward()
    return x.grad


def a_hook_that_reads(D: str, sync: Sync) -> object:
    norms: list[float] = []
    x = data(D, 3).requires_grad_()
    x.register_hook(lambda g: norms.append(g.norm().item()))
    (x * 2).square().sum().backward()
    return x.grad, norms


HOOKS = [
    tensor_hooks,
    accumulation_hooks,
    module_hooks,
    saved_tensors_packed,
    saved_on_the_host,
    a_hook_that_reads,
]


@pytest.mark.parametrize("program", HOOKS, ids=lambda f: f.__name__)
def test_hooks_run_and_their_results_are_used(program: Program, barrier: str) -> None:
    check(program, barrier)


def test_an_optimizer_in_the_backward_pass() -> None:
    def program(D: str, sync: Sync) -> object:
        model = made(lambda: nn.Linear(3, 2), D)
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def apply(p: torch.Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(apply)
        for _ in range(3):
            model(data(D, 4, 3)).square().mean().backward()
        return [p.detach() for p in model.parameters()]

    check(program)


# -- checkpointing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_checkpointing(use_reentrant: bool, dropout: float, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        first = made(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(dropout), nn.Tanh()), D)
        second = made(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(dropout)), D)
        x = data(D, 5, 4).requires_grad_()
        y = checkpoint(first, x, use_reentrant=use_reentrant)
        sync()
        y = checkpoint(second, y, use_reentrant=use_reentrant)
        sync()
        y.square().sum().backward()
        return y, x.grad, [p.grad for m in (first, second) for p in m.parameters()]

    check(program, barrier)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_a_sequence_and_with_keywords(use_reentrant: bool) -> None:
    def program(D: str, sync: Sync) -> object:
        model = made(lambda: nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))), D)
        x = data(D, 2, 3).requires_grad_()
        y = checkpoint_sequential(model, 2, x, use_reentrant=use_reentrant)
        y.sum().backward()
        return y, x.grad, [p.grad for p in model.parameters()]

    check(program)


def test_checkpointing_under_autocast_recomputes_in_the_same_dtype() -> None:
    def program(D: str, sync: Sync) -> object:
        layer = made(lambda: nn.Linear(4, 4), D)
        x = data(D, 2, 4).requires_grad_()
        with torch.autocast(D, torch.bfloat16):
            y = checkpoint(layer, x, use_reentrant=False)
        y.float().sum().backward()
        return y, x.grad

    check(program, rtol=2e-2, atol=2e-2)


# -- custom functions, anomalies -------------------------------------------------------------------------------------


class Exp(torch.autograd.Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        y = (x * scale).exp()
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        (y,) = ctx.saved_tensors
        return g * y * ctx.scale, None


class ClampInPlace(torch.autograd.Function):
    """Writes to its argument and passes the gradient straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.clamp_(-0.5, 0.5)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class TwoOutputs(torch.autograd.Function):
    """One output has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = x.max(0)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        ctx.sizes = x.shape
        return values, indices

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, _: Any) -> torch.Tensor:
        (indices,) = ctx.saved_tensors
        return torch.zeros(ctx.sizes, device=g.device).scatter_(0, indices[None], g[None])


def custom_functions(D: str, sync: Sync) -> object:
    x = data(D, 4, 3).requires_grad_()
    y = Exp.apply(x, 0.5)
    sync()
    z = ClampInPlace.apply(y * 1)
    values, indices = TwoOutputs.apply(z)
    sync()
    (values * 2).sum().backward()
    return y, z, values, indices, x.grad


def custom_function_twice_differentiated(D: str, sync: Sync) -> object:
    x = data(D, 4).requires_grad_()
    (g,) = torch.autograd.grad(Exp.apply(x, 2.0).sum(), x, create_graph=True)
    sync()
    g.sum().backward()
    return g, x.grad


@pytest.mark.parametrize("program", [custom_functions, custom_function_twice_differentiated], ids=lambda f: f.__name__)
def test_functions_with_gradients_of_their_own(program: Program, barrier: str) -> None:
    check(program, barrier)


# PyTorch says each time that anomaly mode is slow.
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode_names_the_forward_operation() -> None:
    x = torch.zeros(2, device=D, requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(RuntimeError, match="returned nan values"),
    ):
        (x.sqrt() * 0).sum().backward()


# PyTorch says each time that anomaly mode is slow.
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode_lets_a_healthy_step_pass() -> None:
    def program(D: str, sync: Sync) -> object:
        with torch.autograd.detect_anomaly():
            x = data(D, 3).requires_grad_()
            x.exp().sum().backward()
        return x.grad

    check(program)


def test_a_gradient_graph_may_cross_the_devices() -> None:
    w = data("cpu", 3).requires_grad_()
    y = (w.to(D) * 2).cpu() * 3
    y.sum().backward()
    assert w.grad is not None
    compare(torch.full((3,), 6.0), w.grad, on_device=False)
    there = data(D, 3).requires_grad_()
    (there.cpu() ** 2).sum().backward()
    torchport.sync()
    assert there.grad is not None
    assert there.grad.device.type == torch.device(D).type
    torch.testing.assert_close(there.grad.cpu(), data("cpu", 3) * 2)
