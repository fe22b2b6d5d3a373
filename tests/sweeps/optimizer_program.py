"""What the sweep does with an optimizer: ten steps, and the last five again from a state that was saved and loaded."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

import torchport
from sweeps.modes import cotangent
from sweeps.programs import Outcome, compared, spread
from sweeps.records import SampleRecord

STEPS, SAVED_AFTER = 10, 5

IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "forloop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "differentiable": {"differentiable": True},
    "capturable": {"foreach": False},
    "capturable-foreach": {"foreach": True},
    "sparse": {},
}
"""The ways in which an optimizer may do its step, and what asks for each; ``sparse`` is one of gradients."""


def has_implementation(info: Any, mode: str) -> bool:
    """Whether the optimizer has it, on the CPU; a capturable one has its counter of steps on the device."""
    if mode == "sparse":
        return bool(info.only_supports_sparse_grads or info.supports_sparse)
    if info.only_supports_sparse_grads:
        return False
    if mode == "fused":
        return "cpu" in info.supports_fused_on
    if mode.startswith("capturable"):
        return bool(info.has_capturable_arg)
    if mode == "differentiable":
        return mode in info.supported_impls
    return mode == "default" or "foreach" in info.supported_impls


def inputs_of(info: Any, mode: str) -> list[dict[str, Any]]:
    """The keywords of each of the database's inputs, with those that ask for the implementation."""
    capturable = mode.startswith("capturable")
    # The database gives the capturable ones for CUDA alone; they hold no tensors on it.
    inputs = [dict(i.kwargs) for i in info.optim_inputs_func(device="cuda" if capturable else "cpu")]
    flags = IMPLEMENTATIONS[mode]
    chosen = [k | flags for k in inputs if bool(k.get("capturable")) == capturable]
    if mode == "foreach":  # PyTorch refuses it with a tensor as lr unless capturable, on every device
        chosen = [k for k in chosen if not isinstance(k.get("lr"), torch.Tensor)]
    return chosen


def run_optimizer(
    info: Any,
    mode: str,
    dtype: torch.dtype,
    limit: int,
    started: Callable[[int], None],
    ended: Callable[[SampleRecord], None],
) -> None:
    """Runs up to ``limit`` of the database's inputs; calls ``started`` before each and ``ended`` after it."""
    for index, keywords in spread(inputs_of(info, mode), limit):
        started(index)
        program = partial(_differentiated if mode == "differentiable" else _trained, info, mode, dtype, keywords)
        with cpu_as_an_accelerator():
            ended(compared(index, program))


def numbers(device: str, dtype: torch.dtype, *sizes: int, seed: int) -> torch.Tensor:
    """The same normal numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(
        device, dtype
    )


@dataclass(slots=True)
class Task:
    """A small regression."""

    parameters: list[nn.Parameter]
    loss: Callable[[], torch.Tensor]


def make_task(device: str, dtype: torch.dtype, kind: str = "dense") -> Task:
    """A task whose gradients are dense, sparse, or, for optimizers of matrices, of matrices alone."""
    if kind == "sparse":
        table = nn.Parameter(numbers(device, dtype, 10, 4, seed=1))
        index = torch.tensor([1, 3, 3, 7, 0], device=device)
        return Task([table], lambda: F.embedding(index, table, sparse=True).square().sum())
    first = nn.Parameter(numbers(device, dtype, 6, 5, seed=1) * 0.3)
    second = nn.Parameter(numbers(device, dtype, 5, 3, seed=2) * 0.3)
    x, y = numbers(device, dtype, 8, 6, seed=3), numbers(device, dtype, 8, 3, seed=4)
    if kind == "matrices":
        return Task([first, second], lambda: (_bounded(x @ first) @ second - y).abs().square().mean())
    bias, scale = nn.Parameter(numbers(device, dtype, 5, seed=5)), nn.Parameter(numbers(device, dtype, seed=6))
    return Task(
        [first, second, bias, scale],
        lambda: (_bounded(x @ first + bias) @ second * scale - y).abs().square().mean(),
    )


def _bounded(x: torch.Tensor) -> torch.Tensor:
    # The tangent of complex numbers has poles, near which the last bit of a parameter decides about the loss.
    return x / (1 + x.abs()) if x.is_complex() else x.tanh()


class CompileCounter:
    """How many graphs were compiled since it was asked last."""

    def __init__(self) -> None:
        self._before = self._now()

    def _now(self) -> int:
        torchport.wait_device_ops()
        return int(torchport.metrics.counter_value("UncachedCompile") or 0)

    def since(self) -> int:
        """The number, which starts again from zero."""
        before, self._before = self._before, self._now()
        return self._before - before


ACCELERATORS_ONLY = ("_get_capturable_supported_devices", "_get_foreach_kernels_supported_devices")
"""PyTorch's lists of devices that have capturable optimizers, and whose default is foreach; the CPU is on neither."""


@contextmanager
def cpu_as_an_accelerator() -> Iterator[None]:
    """Puts the CPU, which the device is compared with, on these lists, so that it takes the same path."""
    with ExitStack() as patches:
        for name in ACCELERATORS_ONLY:
            listed = getattr(sys.modules["torch.optim.optimizer"], name)
            for module in [m for n, m in sys.modules.items() if n.startswith("torch.optim.") and hasattr(m, name)]:
                patches.enter_context(patch.object(module, name, partial(_with_cpu, listed)))
        yield


def _with_cpu(listed: Callable[..., list[str]], *args: Any, **kwargs: Any) -> list[str]:
    return [*listed(*args, **kwargs), "cpu"]


def _trained(info: Any, mode: str, dtype: torch.dtype, keywords: dict[str, Any], device: str) -> Outcome:
    kind = "sparse" if mode == "sparse" else "matrices" if info.name == "Muon" else "dense"

    def make(parameters: list[nn.Parameter]) -> Any:
        return info.optim_cls(parameters, **copy.deepcopy(keywords))

    task = make_task(device, dtype, kind)
    optimizer = make(task.parameters)
    losses, compiles = _steps(SAVED_AFTER, task, optimizer, info.step_requires_closure)
    again = reloaded(make, task, optimizer, make_task(device, dtype, kind))
    torchport.sync()
    for into, more in zip(
        (losses, compiles),
        _steps(STEPS - SAVED_AFTER, task, optimizer, info.step_requires_closure),
        strict=True,
    ):
        into.extend(more)
    outcome = Outcome(compiles=compiles)
    losses_again, outcome.compiles_after_loading = _steps(STEPS - SAVED_AFTER, *again, info.step_requires_closure)
    for suffix, values, (of, by) in (("", losses, (task, optimizer)), (" after loading", losses_again, again)):
        outcome.device["losses" + suffix] = values
        outcome.device["parameters" + suffix] = [p.detach() for p in of.parameters]
        # A counter of steps is where the implementation wants it.
        outcome.host["state" + suffix] = _on_host([by.state[p] for p in of.parameters])
    return outcome


def _steps(count: int, task: Task, optimizer: Any, with_closure: bool) -> tuple[list[torch.Tensor], list[int]]:
    """Does so many steps; gives the loss of each, and how many graphs it compiled."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = task.loss()
        loss.backward()
        return loss

    losses, compiles, counter = [], [], CompileCounter()
    for _ in range(count):
        if with_closure:
            loss = optimizer.step(closure)
        else:
            loss = closure()
            optimizer.step()
        torchport.sync()
        losses.append(loss.detach())
        compiles.append(counter.since())
    return losses, compiles


def reloaded(make: Callable[..., Any], task: Task, optimizer: Any, fresh: Task) -> tuple[Task, Any]:
    """A task and an optimizer that know of the others only what a file says."""
    file = io.BytesIO()
    torch.save({"parameters": [p.detach() for p in task.parameters], "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, map_location="cpu")
    with torch.no_grad():
        for parameter, value in zip(fresh.parameters, saved["parameters"], strict=True):
            parameter.copy_(value)
    other = make(fresh.parameters)
    other.load_state_dict(saved["optimizer"])
    return fresh, other


def _differentiated(info: Any, mode: str, dtype: torch.dtype, keywords: dict[str, Any], device: str) -> Outcome:
    """The derivative of ten steps with respect to where they began and to their gradients."""
    leaves = [numbers(device, dtype, 4, 3, seed=1).requires_grad_(), numbers(device, dtype, 3, seed=2).requires_grad_()]
    gradients = [numbers(device, dtype, *p.shape, seed=i + 5).requires_grad_() for i, p in enumerate(leaves)]
    parameters = [leaf.clone() for leaf in leaves]
    optimizer = info.optim_cls(parameters, **copy.deepcopy(keywords))
    outcome, counter = Outcome(), CompileCounter()
    for _ in range(STEPS):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient * gradient + 0.1
        optimizer.step()
        torchport.sync()
        outcome.compiles.append(counter.since())
    torch.autograd.backward(parameters, [cotangent(p.detach()).to(device) for p in parameters])
    outcome.device["parameters"] = [p.detach() for p in parameters]
    outcome.device["derivatives"] = [p.grad for p in (*leaves, *gradients)]
    return outcome


def _on_host(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().cpu()
    if isinstance(x, dict):
        return {k: _on_host(v) for k, v in sorted(x.items())}
    return [_on_host(v) for v in x] if isinstance(x, list | tuple) else x
