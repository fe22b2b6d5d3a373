"""Forward-mode derivatives and the transforms of ``torch.func``, with the CPU as the oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

from lazy.cases.oracle import BARRIERS, D, Program, check, data, digits, made

# PyTorch's own forward-mode decompositions are compiled with torch.jit.script when they are first imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

Sync = Callable[[], None]


@pytest.fixture(params=BARRIERS)
def barrier(request: pytest.FixtureRequest) -> str:
    """Where the program meets a barrier."""
    return str(request.param)


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.sum()).pow(2).sum()


# -- forward AD ------------------------------------------------------------------------------------------------------


FORWARD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x: (x.sin() * x).exp(),
    "matmul": lambda x: x @ x.t(),
    "reduction": lambda x: x.logsumexp(0),
    "views": lambda x: x.t()[1:].reshape(-1) * 2,
    "softmax": lambda x: x.softmax(1),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (3,)),
    "a write": lambda x: _scaled_in_place(x),
    "cat": lambda x: torch.cat([x, x * 2]),
    "factory": lambda x: x + torch.ones_like(x),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "convolution": lambda x: nn.functional.conv1d(x[None], torch.ones(2, 3, 2, device=x.device)),
    "index": lambda x: x[torch.tensor([0, 2], device=x.device)],
}


def _scaled_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[0].mul_(3)
    return y


@pytest.mark.parametrize("name", FORWARD)
def test_jvp_of_torch_func(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        x, t = data(D, 3, 3), data(D, 3, 3, seed=2)
        out, tangent = jvp(FORWARD[name], (x,), (t,))
        sync()
        return out, tangent

    check(program, barrier)


@pytest.mark.parametrize("name", FORWARD)
def test_dual_numbers(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        with fwAD.dual_level():
            dual = fwAD.make_dual(data(D, 3, 3), data(D, 3, 3, seed=2))
            sync()
            primal, tangent = fwAD.unpack_dual(FORWARD[name](dual))
            sync()
            return primal.clone(), tangent.clone()

    check(program, barrier)


def test_forward_over_reverse() -> None:
    def program(D: str, sync: Sync) -> object:
        x, v = data(D, 4), data(D, 4, seed=2)
        return jvp(grad(f), (x,), (v,)), jacfwd(torch.sin)(x), jacfwd(grad(f))(x)

    check(program)


# -- torch.func ------------------------------------------------------------------------------------------------------


def func_grad(D: str, sync: Sync) -> object:
    x = data(D, 4)
    return grad(f)(x), grad_and_value(f)(x), vmap(grad(grad(torch.sin)))(x)


def func_vjp_jacrev_hessian(D: str, sync: Sync) -> object:
    x = data(D, 4)
    out, pullback = vjp(torch.tanh, x)
    sync()
    return out, pullback(data(D, 4, seed=2)), jacrev(torch.tanh)(x), hessian(f)(x)


def vmapped(D: str, sync: Sync) -> object:
    x, w = data(D, 5, 3), data(D, 3, 3, seed=2)
    a = vmap(lambda r: (w @ r).relu().sum())(x)
    sync()
    b = vmap(torch.dot)(x, x * 2)
    c = vmap(lambda r, c: r * c, in_dims=(0, 1), out_dims=1)(x, x.t())
    d = vmap(lambda r: r.sort().values[0])(x)
    return a, b, c, d


def vmapped_with_in_place_and_factories(D: str, sync: Sync) -> object:
    def body(r: torch.Tensor) -> torch.Tensor:
        y = r.clone()
        y.add_(torch.arange(3.0, device=D))
        return y * torch.ones(3, device=D)

    return vmap(body)(data(D, 4, 3))


def per_sample_gradients(D: str, sync: Sync) -> object:
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), D)
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, data(D, 5, 3), digits(D, 2, 5))
    sync()
    return gradients


def functional_calls(D: str, sync: Sync) -> object:
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), D)
    zeros = {k: torch.zeros_like(v) for k, v in model.named_parameters()}
    x = data(D, 5, 3)
    a = functional_call(model, zeros, (x,))
    sync()
    return a, model(x)


def model_ensemble(D: str, sync: Sync) -> object:
    models = [made(lambda: nn.Linear(3, 2), D) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = made(lambda: nn.Linear(3, 2), D)
    return vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(
        parameters, buffers, data(D, 4, 3)
    )


def functionalized(D: str, sync: Sync) -> object:
    def body(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[0].add_(5)
        return y

    return torch.func.functionalize(body)(data(D, 3, 3))


FUNC = [
    func_grad,
    func_vjp_jacrev_hessian,
    vmapped,
    vmapped_with_in_place_and_factories,
    per_sample_gradients,
    functional_calls,
    model_ensemble,
    functionalized,
]


@pytest.mark.parametrize("program", FUNC, ids=lambda f: f.__name__)
def test_function_transforms(program: Program, barrier: str) -> None:
    check(program, barrier, rtol=1e-4, atol=1e-5)


def test_vmap_with_randomness() -> None:
    x = torch.zeros(4, 6, device=D)
    different = vmap(lambda r: r + torch.rand(6, device=D), randomness="different")(x).cpu()
    same = vmap(lambda r: r + torch.rand(6, device=D), randomness="same")(x).cpu()
    assert not torch.equal(different[0], different[1])
    assert torch.equal(same[0], same[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda r: r + torch.rand(6, device=D))(x)
