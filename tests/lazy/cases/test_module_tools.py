"""What PyTorch does to modules and parameters around a training step: it works, and compiles nothing again."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim import swa_utils

import torchport
from lazy.cases.oracle import D as DEVICE
from lazy.cases.oracle import compare, data, made, no_compile

STEPS, WARM_UP = 8, 3

Tool = Callable[[nn.Module], object]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def trained(
    device: str,
    tool: Tool,
    make: Callable[[nn.Module], optim.Optimizer] = lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    before_step: Tool = lambda m: None,
    after_step: Tool = lambda m: None,
) -> dict[str, Any]:
    """The state after some steps, of which the later ones compile nothing."""
    torch.manual_seed(0)
    model = made(network, device)
    tool(model)
    optimizer = make(model)
    x, y = data(device, 5, 4), data(device, 5, 3, seed=2)

    def step() -> None:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        before_step(model)
        optimizer.step()
        after_step(model)
        torchport.sync()

    for _ in range(WARM_UP):
        step()
    with no_compile():
        for _ in range(STEPS - WARM_UP):
            step()
    model.eval()
    return {"output": model(x).detach(), **{k: v.detach() for k, v in model.state_dict().items()}}


def check(*args: Any, **kwargs: Any) -> None:
    # In which layout an orthogonal basis comes is LAPACK's affair.
    compare(trained("cpu", *args, **kwargs), trained(DEVICE, *args, **kwargs), strides=False)


TOOLS: dict[str, Tool] = {
    "weight norm": lambda m: parametrizations.weight_norm(m[0]),
    "spectral norm": lambda m: parametrizations.spectral_norm(m[0]),
    "orthogonal, matrix_exp": lambda m: parametrizations.orthogonal(m[0], orthogonal_map="matrix_exp"),
    "orthogonal, cayley": lambda m: parametrizations.orthogonal(m[0], orthogonal_map="cayley"),
    "orthogonal, householder": lambda m: parametrizations.orthogonal(m[0], orthogonal_map="householder"),
    "symmetric": lambda m: parametrize.register_parametrization(m[0], "weight", _Doubled()),
    "pruned by size": lambda m: prune.l1_unstructured(m[0], "weight", amount=0.3),
    "pruned at random": lambda m: prune.random_unstructured(m[0], "weight", amount=0.3),
    "pruned in rows": lambda m: prune.ln_structured(m[0], "weight", amount=2, n=2, dim=0),
    "pruned globally": lambda m: prune.global_unstructured(
        [(m[0], "weight"), (m[2], "weight")], pruning_method=prune.L1Unstructured, amount=5
    ),
    "pruned for good": lambda m: prune.remove(prune.l1_unstructured(m[0], "weight", amount=0.3), "weight"),
}


class _Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.flip(0)


@pytest.mark.parametrize("name", TOOLS)
def test_a_changed_module_trains_as_on_the_cpu(name: str) -> None:
    check(TOOLS[name])


def groups(model: nn.Module, lr: Any = 0.1) -> list[dict[str, Any]]:
    return [{"params": model[0].parameters(), "lr": lr}, {"params": model[2].parameters(), "weight_decay": 0.1}]


OPTIMIZERS: dict[str, Callable[[nn.Module], optim.Optimizer]] = {
    "groups": lambda m: optim.Adam(groups(m), lr=0.01),
    "groups, foreach": lambda m: optim.Adam(groups(m), lr=0.01, foreach=True),
    "groups, fused": lambda m: optim.AdamW(groups(m), lr=0.01, fused=True),
    "groups, one rate in a tensor": lambda m: optim.Adam(groups(m, torch.tensor(0.05)), lr=0.01),
    "named parameters": lambda m: optim.Adam(m.named_parameters(), lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_of_parameters_train_as_on_the_cpu(name: str) -> None:
    check(lambda m: None, OPTIMIZERS[name])


CLIPS: dict[str, Tool] = {
    "by norm": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1),
    "by norm, not finite raises": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1, error_if_nonfinite=True),
    "by value": lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.01),
    "in two calls": lambda m: nn.utils.clip_grads_with_norm_(
        m.parameters(), 0.1, nn.utils.get_total_norm([p.grad for p in m.parameters() if p.grad is not None])
    ),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clipped_gradients_train_as_on_the_cpu(name: str) -> None:
    check(lambda m: None, before_step=CLIPS[name])


AVERAGES: dict[str, dict[str, Any]] = {
    "equal": {},
    "exponential": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "exponential, one by one": {"avg_fn": swa_utils.get_ema_avg_fn(0.9)},
    "with buffers": {"use_buffers": True},
}


@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_of_the_weights_is_the_cpus(name: str) -> None:
    averages: list[Any] = []

    def update(model: nn.Module) -> None:
        averages[-1].update_parameters(model)

    def start(model: nn.Module) -> None:
        averages.append(swa_utils.AveragedModel(model, **AVERAGES[name]))

    check(start, after_step=update)
    # Whatever the device of the weights, how many were averaged is counted on the CPU.
    compare(*[{k: v.detach() for k, v in a.state_dict().items()} for a in averages], on_device=False)


def test_statistics_of_averaged_weights_are_made_again() -> None:
    def program(device: str) -> dict[str, torch.Tensor]:
        model = made(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), device)
        average = swa_utils.AveragedModel(model)
        average.update_parameters(model)
        swa_utils.update_bn([data(device, 5, 4, seed=i) for i in range(3)], average)
        return {k: v for k, v in average.state_dict().items() if k != "n_averaged"}

    compare(program("cpu"), program(DEVICE))


def test_a_scaler_skips_the_step_that_overflows() -> None:
    def program(device: str) -> tuple[Any, ...]:
        model = made(network, device)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
        scales = []
        for i in range(6):
            optimizer.zero_grad()
            loss = model(data(device, 5, 4, seed=i)).square().mean() * (float("inf") if i == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, [p.detach() for p in model.parameters()]

    compare(program("cpu"), program(DEVICE))


def test_parameters_as_one_vector_and_back() -> None:
    def program(device: str) -> tuple[Any, ...]:
        model = made(network, device)
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(vector.detach() * 2, model.parameters())
        return vector.detach(), {k: v.clone() for k, v in model.state_dict().items()}, model(data(device, 2, 4))

    compare(program("cpu"), program(DEVICE))


def test_a_module_called_with_other_parameters() -> None:
    def program(device: str) -> tuple[Any, ...]:
        model = made(network, device)
        others = {n: (p.detach() * 0.5).requires_grad_() for n, p in model.named_parameters()}
        y = torch.func.functional_call(model, others, (data(device, 2, 4),))
        y.square().sum().backward()
        return y, [p.grad for p in others.values()], [p.grad for p in model.parameters()]

    compare(program("cpu"), program(DEVICE))


def test_an_ensemble_of_stacked_modules() -> None:
    def program(device: str) -> torch.Tensor:
        models = [made(network, device) for _ in range(3)]
        with torch.no_grad():
            for i, model in enumerate(models):
                model[0].weight.mul_(i + 1)
        parameters, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]
        base = copy.deepcopy(models[0]).to("meta")
        x = data(device, 2, 4)
        return torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(parameters, buffers)

    compare(program("cpu"), program(DEVICE))


def test_a_convolution_and_a_norm_are_fused_for_evaluation() -> None:
    def program(device: str) -> torch.Tensor:
        convolution = made(lambda: nn.Conv2d(2, 3, 3), device).eval()
        norm = made(lambda: nn.BatchNorm2d(3), device).eval()
        return nn.utils.fuse_conv_bn_eval(convolution, norm)(data(device, 1, 2, 5, 5))

    compare(program("cpu"), program(DEVICE))


@pytest.mark.parametrize("kind", [nn.LazyLinear, nn.LazyConv1d, nn.LazyBatchNorm1d])
def test_a_lazy_module_may_move_before_it_knows_its_sizes(kind: Any) -> None:
    arguments = () if kind is nn.LazyBatchNorm1d else (3,) if kind is nn.LazyLinear else (3, 2)

    def program(device: str) -> tuple[Any, ...]:
        module = kind(*arguments).to(device)
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        torch.manual_seed(0)
        y = module(data(device, 4, 6) if kind is nn.LazyLinear else data(device, 4, 5, 6))
        y.square().sum().backward()
        optimizer.step()
        return y, {k: v.detach() for k, v in module.state_dict().items()}

    compare(program("cpu"), program(DEVICE))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("padding", ["right", "float", "left", "none"])
def test_an_encoder_in_evaluation_gives_zeros_for_padding(padding: str, norm: bool) -> None:
    def program(device: str) -> torch.Tensor:
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        encoder = made(lambda: nn.TransformerEncoder(layer, 2, nn.LayerNorm(8) if norm else None), device).eval()
        mask = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool() if padding != "none" else None
        if padding == "left" and mask is not None:
            mask = mask.flip(1)
        if padding == "float" and mask is not None:
            mask = torch.zeros(2, 5).masked_fill(mask, float("-inf"))
        mask = mask if mask is None else mask.to(device)
        with torch.no_grad():
            return encoder(data(device, 2, 5, 8), src_key_padding_mask=mask)

    before = torchport.executed_fallback_ops()
    compare(program("cpu"), program(DEVICE))
    assert before == torchport.executed_fallback_ops()


def test_a_pickled_module_comes_back_on_the_device() -> None:
    model = made(network, DEVICE)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert {DEVICE} == {p.device.type for p in again.parameters()}
    compare(model.cpu().state_dict(), again.cpu().state_dict(), on_device=False)
