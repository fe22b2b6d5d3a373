"""An exception of the user's code inside autograd reaches the caller of backward(), and the device goes on."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from lazy.cases.oracle import D


class BoomError(Exception):
    pass


def boom(*args: object) -> None:
    raise BoomError("of the user")


def node_hook(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    assert y.grad_fn is not None
    y.grad_fn.register_hook(boom)
    return y


def node_prehook(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(boom)
    return y


def accumulation_hook(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.grad_fn.next_functions[0][0].register_hook(boom)  # type: ignore[union-attr]
    return y


def module_backward_hook(x: torch.Tensor) -> torch.Tensor:
    module = nn.Linear(3, 3, device=x.device)
    module.register_full_backward_hook(boom)
    return module(x)


def module_backward_prehook(x: torch.Tensor) -> torch.Tensor:
    module = nn.Linear(3, 3, device=x.device)
    module.register_full_backward_pre_hook(boom)
    return module(x)


def tensor_hook(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.register_hook(boom)
    return y


def post_accumulation_hook(x: torch.Tensor) -> torch.Tensor:
    x.register_post_accumulate_grad_hook(boom)
    return x.sin()


def saved_tensor_hook(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, boom):
        return x.sin()


class RaisesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        boom()


def function_backward(x: torch.Tensor) -> torch.Tensor:
    return RaisesBackward.apply(x)


def checkpointed(use_reentrant: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        calls = []

        def once(x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            if len(calls) > 1:
                boom()
            return x.sin()

        return torch.utils.checkpoint.checkpoint(once, x, use_reentrant=use_reentrant)

    return program


def reentrant_backward(x: torch.Tensor) -> torch.Tensor:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                y = torch.ones(3, device=g.device, requires_grad=True)
                node_hook(y).sum().backward()

    return Inner.apply(x)


def run_backward(y: torch.Tensor, x: torch.Tensor) -> None:
    y.backward()


def run_grad(y: torch.Tensor, x: torch.Tensor) -> None:
    torch.autograd.grad(y, x)


def run_with_anomaly_mode(y: torch.Tensor, x: torch.Tensor) -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        y.backward()


ANYWHERE = (
    node_hook,
    node_prehook,
    module_backward_hook,
    module_backward_prehook,
    tensor_hook,
    saved_tensor_hook,
    function_backward,
    checkpointed(False),
    reentrant_backward,
)
WHERE_GRADIENTS_ACCUMULATE = (accumulation_hook, post_accumulation_hook, checkpointed(True))
"""``torch.autograd.grad`` runs none of these hooks, and refuses the reentrant checkpoint."""


@pytest.mark.parametrize(
    ("program", "run"),
    [
        *((p, run) for p in ANYWHERE for run in (run_backward, run_grad, run_with_anomaly_mode)),
        *((p, run) for p in WHERE_GRADIENTS_ACCUMULATE for run in (run_backward, run_with_anomaly_mode)),
    ],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled", "ignore:Error detected in")
def test_an_exception_in_a_hook_reaches_the_caller_and_the_device_goes_on(
    program: Callable[[torch.Tensor], torch.Tensor], run: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    for device in ("cpu", D):
        x = torch.ones(3, device=device, requires_grad=True)
        y = program(x).sum()
        with pytest.raises(BoomError, match="of the user") as raised:
            run(y, x)
        assert "boom" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        z = torch.ones(3, device=device, requires_grad=True)
        (z * 3).sum().backward()
        assert z.grad is not None
        assert torch.equal(z.grad.cpu(), torch.full((3,), 3.0))


def test_ctrl_c_in_a_hook_reaches_the_caller() -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    x = torch.ones(3, device=D, requires_grad=True)
    y = x.sin()
    assert y.grad_fn is not None
    y.grad_fn.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        y.sum().backward()
    assert torch.equal((x.detach() + 1).cpu(), torch.full((3,), 2.0))


def test_an_exception_in_another_threads_hook_stays_there() -> None:
    caught: list[BaseException] = []

    def train() -> None:
        x = torch.ones(3, device=D, requires_grad=True)
        try:
            node_hook(x).sum().backward()
        except BoomError as error:
            caught.append(error)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    x = torch.ones(3, device=D, requires_grad=True)
    x.sin().sum().backward()
    for thread in threads:
        thread.join()
    assert len(caught) == 4
