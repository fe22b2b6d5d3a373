"""Autocast and gradient scaling (case 21)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import torchport
from lazy.cases.oracle import D as DEVICE
from lazy.cases.oracle import check, compare, data, made, no_compile

Sync = Callable[[], None]

EXPRESSIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": torch.mm,
    "matmul": torch.matmul,
    "linear": lambda a, b: F.linear(a, b),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "conv1d": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None]),
    "mm then add": lambda a, b: a @ b + a,
    "mm then relu": lambda a, b: (a @ b).relu(),
    "add": torch.add,
    "exp": lambda a, b: a.exp() * b,
    "mse_loss": lambda a, b: F.mse_loss(a @ b, a),
    "cat of both kinds": lambda a, b: torch.cat([a @ b, a]),
    "float64 stays": lambda a, b: a.double() + b.double(),
    "integers stay": lambda a, b: (a > 0).long() + (b > 0).long(),
    "already bfloat16": lambda a, b: a.bfloat16() @ b,
}
# Of these the CPU's table of casts has an entry of its own that a device of another name need not share.
LISTS_DIFFER = {
    "softmax": lambda a, b: (a @ b).softmax(1),
    "layer_norm": lambda a, b: F.layer_norm(a @ b, (4,)),
    "sum": lambda a, b: (a @ b).sum(),
    "cross_entropy": lambda a, b: F.cross_entropy(a @ b, torch.zeros(4, dtype=torch.int64, device=a.device)),
}


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_autocast_casts_as_it_does_on_the_cpu(name: str, dtype: torch.dtype, grad: bool, barrier: str) -> None:
    if name == "already bfloat16" and dtype is torch.float16:
        dtype = torch.bfloat16

    def program(D: str, sync: Sync) -> object:
        a, b = data(D, 4, 4).requires_grad_(grad), data(D, 4, 4, seed=2).requires_grad_(grad)
        with torch.set_grad_enabled(grad), torch.autocast(D, dtype):
            y = EXPRESSIONS[name](a, b)
            sync()
        if grad and y.requires_grad:
            y.float().sum().backward()
        return y, a.grad, b.grad

    check(program, barrier, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", LISTS_DIFFER)
def test_autocast_computes_the_delicate_ones_accurately(name: str) -> None:
    a, b = data(DEVICE, 4, 4), data(DEVICE, 4, 4, seed=2)
    with torch.autocast(DEVICE, torch.bfloat16):
        y = LISTS_DIFFER[name](a, b)
    torch.testing.assert_close(y.cpu().float(), LISTS_DIFFER[name](a.cpu(), b.cpu()), rtol=5e-2, atol=5e-2)


def test_autocast_nests_and_can_be_switched_off(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        a = data(D, 4, 4)
        with torch.autocast(D, torch.bfloat16):
            low = a @ a
            with torch.autocast(D, enabled=False):
                high = a @ a
                sync()
            again = high @ a
        outside = a @ a
        return low, high, again, outside

    check(program, barrier, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("enabled", [True, False], ids=["cached", "not cached"])
def test_autocast_casts_a_weight_once_per_region(enabled: bool, barrier: str) -> None:
    """So the gradients of its uses add up in the lower precision; and the next region sees what a step has changed."""
    assert torch.amp.is_autocast_available(torch.device(DEVICE).type)

    def program(D: str, sync: Sync) -> object:
        weight = data(D, 8, 8).requires_grad_()
        results = []
        for step in range(2):
            with torch.autocast(D, torch.bfloat16, cache_enabled=enabled):
                with torch.autocast(D, torch.bfloat16, cache_enabled=enabled):
                    x = data(D, 6, 8, seed=step) @ weight
                sync()
                y = x @ weight + x @ weight.detach() + torch.tanh(x) @ weight
            y.float().square().sum().backward()
            results += [y, weight.grad.clone()]
            with torch.no_grad():
                weight -= 0.1 * weight.grad
        return results

    check(program, barrier, rtol=0, atol=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_weight_that_autocast_casts_first_without_a_graph_has_its_gradient_afterwards(
    mode: Callable[[], Any], barrier: str
) -> None:
    def program(D: str, sync: Sync) -> object:
        weight, x = data(D, 4, 4).requires_grad_(), data(D, 3, 4)
        with torch.autocast(D, torch.bfloat16):
            with mode():
                first = (x @ weight).float().sum().item()
            sync()
            y = x @ weight
        y.float().sum().backward()
        return first, y, weight.grad

    check(program, barrier)


@pytest.mark.parametrize(("projection", "cell"), [(0, torch.bfloat16), (2, torch.float32)])
def test_autocast_casts_an_lstm_as_a_whole_unless_it_projects(projection: int, cell: torch.dtype) -> None:
    network = made(lambda: nn.LSTM(4, 3, num_layers=2, proj_size=projection), DEVICE)
    x = data(DEVICE, 5, 2, 4).requires_grad_()
    with torch.autocast(DEVICE, torch.bfloat16):
        output, (hidden_state, cell_state) = network(x)
    assert (torch.bfloat16, torch.bfloat16, cell) == (output.dtype, hidden_state.dtype, cell_state.dtype)
    output.float().sum().backward()
    assert {torch.float32} == {t.grad.dtype for t in (x, *network.parameters())}
    exact, _ = network(x)
    torch.testing.assert_close(output.float().cpu(), exact.cpu(), rtol=2e-2, atol=2e-2)


def test_autocast_as_a_decorator() -> None:
    @torch.autocast(DEVICE, torch.bfloat16)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    assert f(data(DEVICE, 3, 3)).dtype is torch.bfloat16


def test_autocast_training_compiles_nothing_after_two_steps_and_ends_near_the_cpu() -> None:
    def train(D: str) -> tuple[nn.Module, Callable[[], None]]:
        model = made(lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)), D)
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast(D, torch.bfloat16):
                loss = F.mse_loss(model(data(D, 8, 4)), torch.ones(8, 2, device=D))
            loss.backward()
            optimizer.step()

        return model, step

    model, step = train(DEVICE)
    reference, reference_step = train("cpu")
    for _ in range(2):
        step()
    with no_compile():
        for _ in range(3):
            step()
    for _ in range(5):
        reference_step()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert p.dtype is torch.float32
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=2e-2, atol=2e-2)


def scaled_training(D: str, poison: set[int], **kwargs: Any) -> tuple[list[torch.Tensor], list[float]]:
    """Six steps with a scaler; in the poisoned ones a gradient becomes infinite. Weights and scales after each."""
    model = made(lambda: nn.Linear(3, 2), D)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(D, init_scale=1024.0, growth_interval=2, **kwargs)
    weights, scales = [], []
    for i in range(6):
        optimizer.zero_grad()
        loss = model(data(D, 5, 3, seed=i)).square().mean()
        if i in poison:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        weights.append(model.weight.detach().clone())
        scales.append(scaler.get_scale())
    return weights, scales


@pytest.mark.parametrize("poison", [set(), {2}, {0, 1}, {1, 4, 5}], ids=str)
def test_a_scaler_skips_infinite_gradients_and_ends_with_the_cpus_weights_and_scale(poison: set[int]) -> None:
    weights, scales = scaled_training("cpu", poison)
    ours, our_scales = scaled_training(DEVICE, poison)
    assert scales == our_scales
    compare(weights, ours)


def test_a_scaler_that_is_disabled_does_nothing() -> None:
    weights, scales = scaled_training("cpu", set(), enabled=False)
    ours, our_scales = scaled_training(DEVICE, set(), enabled=False)
    assert scales == our_scales == [1.0] * 6
    compare(weights, ours)


@pytest.mark.parametrize("poisoned", [False, True])
def test_a_scaler_with_clipping_unscales_first(poisoned: bool, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        model = made(lambda: nn.Linear(3, 2), D)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(D, init_scale=256.0)
        loss = model(data(D, 5, 3)).square().mean() * (float("inf") if poisoned else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        sync()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return norm, [p.detach() for p in model.parameters()], scaler.state_dict()

    check(program, barrier)


def test_a_scaler_in_float16_with_autocast() -> None:
    def program(D: str, sync: Sync) -> object:
        model = made(lambda: nn.Linear(4, 4), D)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(D, init_scale=128.0)
        for i in range(3):
            optimizer.zero_grad()
            with torch.autocast(D, torch.float16):
                loss = model(data(D, 6, 4, seed=i)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [p.detach() for p in model.parameters()], scaler.get_scale()

    check(program, rtol=1e-2, atol=1e-2)


def test_a_scaler_is_saved_and_restored() -> None:
    scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
    scaler.scale(torch.ones(1, device=DEVICE))
    other = torch.amp.GradScaler(DEVICE)
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 8.0
    torchport.sync()


def test_the_dtypes_that_autocast_supports_are_told() -> None:
    supported = torch.get_device_module(DEVICE).get_amp_supported_dtype()
    assert torch.bfloat16 in supported
    assert torch.float16 in supported


def test_a_parameter_that_is_used_twice_is_cast_once_and_so_is_its_gradient() -> None:
    weights = {D: data(D, 16, 16).requires_grad_() for D in ("cpu", DEVICE)}

    def run(D: str, cache: bool) -> torch.Tensor:
        x, w = data(D, 8, 16, seed=2), weights[D]
        w.grad = None
        with torch.autocast(D, torch.bfloat16, cache_enabled=cache):
            y = F.linear(F.linear(x, w), w)
            if D == DEVICE:
                casts = torchport.debug.ir_text(y).count("_to_copy")
                assert (2 if cache else 3) == casts, "the input, and the parameter as often as it is cast"
        y.float().sum().backward()
        assert w.grad is not None
        return w.grad.cpu()

    for cache in (True, False):
        # Bit by bit: the two parts of the gradient are added in bfloat16 if it is cast once, in float32 if twice.
        assert torch.equal(run("cpu", cache), run(DEVICE, cache))
    assert not torch.equal(run(DEVICE, True), run(DEVICE, False))


@pytest.mark.parametrize("first", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("second", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_cast_is_kept_until_autocast_ends_under_the_conditions_of_the_cpu(first: Any, second: Any) -> None:
    def program(D: str) -> list[object]:
        x, w = data(D, 2, 4), data(D, 4, 4, seed=2).requires_grad_()
        found: list[object] = []
        for _ in range(2):
            with torch.autocast(D, torch.bfloat16):
                with first():
                    F.linear(x, w)
                with torch.no_grad():
                    w.mul_(2)
                with second():
                    y = F.linear(x, w)
                found += [y.requires_grad, y.tolist()]
        return found

    assert program("cpu") == program(DEVICE)
