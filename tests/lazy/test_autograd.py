"""Autograd above the device: everything that PyTorch's own engine offers, with the CPU as the oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian, hvp, jacobian, vjp

from lazy.cases.oracle import BARRIERS, D, Program, check, data, made

Sync = Callable[[], None]


@pytest.fixture(params=BARRIERS)
def barrier(request: pytest.FixtureRequest) -> str:
    """Where the program meets a barrier."""
    return str(request.param)


# -- double backward -------------------------------------------------------------------------------------------------


def complex_linear(D: str, sync: Sync) -> object:
    x, w, b = (data(D, *sizes, dtype=torch.complex64).requires_grad_() for sizes in ((2, 5, 3), (4, 3), (4,)))
    first = torch.autograd.grad(nn.functional.linear(x, w, b).abs().sum(), (x, w, b), create_graph=True)
    sync()
    second = torch.autograd.grad(sum(g.abs().square().sum() for g in first), (x, w))
    return [g + 0 for g in (*first, *second)]  # eager's own are views of a product


def gradient_penalty(D: str, sync: Sync) -> object:
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 1)), D)
    x = data(D, 5, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    sync()
    penalty = (gradient.norm(2, dim=1) - 1).square().mean()
    penalty.backward()
    return gradient, penalty, x.grad, [p.grad for p in model.parameters()]


def third_derivative(D: str, sync: Sync) -> object:
    x = data(D, 4).requires_grad_()
    y = x.sin().sum()
    derivatives = []
    for _ in range(3):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        derivatives.append(y)
        sync()
    return derivatives


def through_convolution(D: str, sync: Sync) -> object:
    x = data(D, 1, 2, 5, 5).requires_grad_()
    w = data(D, 3, 2, 3, 3, seed=2).requires_grad_()
    (gx,) = torch.autograd.grad(nn.functional.conv2d(x, w).tanh().sum(), x, create_graph=True)
    sync()
    gx.square().sum().backward()
    return gx, w.grad, x.grad


def through_batch_norm(D: str, sync: Sync) -> object:
    norm = made(lambda: nn.BatchNorm1d(3), D)
    x = data(D, 6, 3).requires_grad_()
    (gx,) = torch.autograd.grad((norm(x) ** 3).sum(), x, create_graph=True)
    sync()
    gx.square().sum().backward()
    return gx, x.grad, [p.grad for p in norm.parameters()]


def through_views_and_writes(D: str, sync: Sync) -> object:
    x = data(D, 4, 4).requires_grad_()
    y = x.exp() * 1
    y[1:] *= x[:3]
    sync()
    (gx,) = torch.autograd.grad(y.t().square().sum(), x, create_graph=True)
    gx.sum().backward()
    return gx, x.grad


def maml_inner_step(D: str, sync: Sync) -> object:
    w = data(D, 3, 2).requires_grad_()
    x, y = data(D, 4, 3, seed=2), data(D, 4, 2, seed=3)
    fast = w
    for _ in range(2):
        (g,) = torch.autograd.grad((x @ fast - y).square().mean(), fast, create_graph=True)
        fast = fast - 0.1 * g
        sync()
    (x @ fast - y).square().mean().backward()
    return fast, w.grad


DOUBLE = [
    gradient_penalty,
    complex_linear,
    third_derivative,
    through_convolution,
    through_batch_norm,
    through_views_and_writes,
    maml_inner_step,
]


@pytest.mark.parametrize("program", DOUBLE, ids=lambda f: f.__name__)
def test_double_backward(program: Program, barrier: str) -> None:
    check(program, barrier, rtol=1e-4, atol=1e-5)


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.sum()).pow(2).sum()


def test_derivatives_by_autograd_functional() -> None:
    def program(D: str, sync: Sync) -> object:
        x, v = data(D, 4), data(D, 4, seed=2)
        return jacobian(torch.tanh, x), hessian(f, x), hvp(f, x, v), vjp(f, x, torch.ones((), device=D))

    check(program)


def test_gradcheck_and_gradgradcheck_pass_on_the_device() -> None:
    x = data(D, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: x.sin() * x.cumsum(0), (x,))
    assert torch.autograd.gradgradcheck(lambda x: x.sin() * x[1:].sum(), (x,))


# -- the engine ------------------------------------------------------------------------------------------------------


def retained_graph(D: str, sync: Sync) -> object:
    x = data(D, 4).requires_grad_()
    y = (x.exp() * x).sum()
    y.backward(retain_graph=True)
    sync()
    y.backward()
    return x.grad


def retained_gradient(D: str, sync: Sync) -> object:
    x = data(D, 4).requires_grad_()
    y = x * 3
    y.retain_grad()
    sync()
    y.square().sum().backward()
    return y.grad, x.grad


def several_roots_and_given_gradients(D: str, sync: Sync) -> object:
    x = data(D, 4).requires_grad_()
    a, b = x * 2, x.sin()
    sync()
    torch.autograd.backward([a, b], [torch.ones(4, device=D), data(D, 4, seed=2)])
    return x.grad


def accumulated(D: str, sync: Sync) -> object:
    x = data(D, 4).requires_grad_()
    held = None
    for i in range(3):
        (x * (i + 1)).sum().backward()
        held = held if held is not None else x.grad
        sync()
    assert held is x.grad, "the gradient is accumulated in place"
    return x.grad


def allowed_unused_and_materialised(D: str, sync: Sync) -> object:
    x, unused = data(D, 4).requires_grad_(), data(D, 3).requires_grad_()
    y = x.square().sum()
    sync()
    none = torch.autograd.grad(y, [x, unused], allow_unused=True, retain_graph=True)
    zeros = torch.autograd.grad(y, [x, unused], materialize_grads=True)
    return list(none), list(zeros)


def batched_gradients(D: str, sync: Sync) -> object:
    x = data(D, 3).requires_grad_()
    y = x.square()
    sync()
    return torch.autograd.grad(y, x, torch.eye(3, device=D), is_grads_batched=True)


def grad_modes(D: str, sync: Sync) -> object:
    x = data(D, 3).requires_grad_()
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
    with torch.inference_mode():
        c = x * 4
    sync()
    return a, b, c.clone(), x.detach(), x.detach().requires_grad_()


def a_gradient_that_is_replaced(D: str, sync: Sync) -> object:
    x = data(D, 3).requires_grad_()
    x.grad = torch.ones(3, device=D)
    (x * 2).sum().backward()
    sync()
    x.grad.zero_()
    (x * 5).sum().backward()
    return x.grad


def an_expanded_gradient(D: str, sync: Sync) -> object:
    x = data(D, 3, 4).requires_grad_()
    x.sum().backward()  # the gradient arrives as an expanded scalar
    sync()
    x.grad[0, 0] = 7
    return x.grad


ENGINE = [
    retained_graph,
    retained_gradient,
    several_roots_and_given_gradients,
    accumulated,
    allowed_unused_and_materialised,
    batched_gradients,
    grad_modes,
    a_gradient_that_is_replaced,
    an_expanded_gradient,
]


@pytest.mark.parametrize("program", ENGINE, ids=lambda f: f.__name__)
def test_the_engines_options(program: Program, barrier: str) -> None:
    check(program, barrier)


@pytest.mark.parametrize("device", ["cpu", D])
def test_a_second_backward_without_retain_graph_is_refused(device: str) -> None:
    y = data(device, 3).requires_grad_().exp().sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


@pytest.mark.parametrize("device", ["cpu", D])
def test_a_leaf_that_requires_grad_cannot_be_written_in_place(device: str) -> None:
    w = data(device, 3).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad is being used in an in-place"):
        w.add_(1)
    with pytest.raises(RuntimeError, match="view of a leaf Variable"):
        w[0] = 1


@pytest.mark.parametrize("device", ["cpu", D])
def test_a_gradient_of_the_wrong_shape_is_refused(device: str) -> None:
    w = data(device, 3).requires_grad_()
    with pytest.raises(RuntimeError, match="shape"):
        (w * 2).backward(torch.ones(4, device=device))
    with pytest.raises(RuntimeError, match="size"):
        w.grad = torch.ones(4, device=device)


@pytest.mark.parametrize("device", ["cpu", D])
def test_a_gradient_of_another_device_is_refused(device: str) -> None:
    w = data(device, 3).requires_grad_()
    other = D if device == "cpu" else "cpu"
    if other == device:
        pytest.skip("one device only")
    with pytest.raises(RuntimeError, match="device"):
        w.grad = torch.ones(3, device=other)
