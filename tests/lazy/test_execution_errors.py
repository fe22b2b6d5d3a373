"""An error inside a computation: raised once, where it belongs, with the user's line; all else keeps its data."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchport
from lazy.cases.oracle import D, compare, data
from torchport import metrics
from torchport.backend import BackendData, BackendDevice, Computation
from torchport.backends.interpreter import InterpreterBackend
from torchport.errors import ExecutionError

THIS_FILE = "test_execution_errors.py"


@pytest.fixture(autouse=True)
def nothing_is_left_over() -> Iterator[None]:
    """What a test spoils is not found by the next one."""
    yield
    gc.collect()
    try:
        torchport.sync(wait=True)
    except ExecutionError:
        torchport.wait_device_ops()


SPOILS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "index": lambda x: x[torch.tensor([99], device=x.device)],
    "embedding": lambda x: F.embedding(torch.tensor([99], device=x.device), x.view(-1, 1)),
    "gather": lambda x: x.gather(0, torch.tensor([99], device=x.device)),
    "index_select": lambda x: x.index_select(0, torch.tensor([99], device=x.device)),
    "scatter": lambda x: x.scatter(0, torch.tensor([99], device=x.device), 1.0),
    "nll": lambda x: F.nll_loss(x[None], torch.tensor([99], device=x.device)),
    "integer division": lambda x: (x * 0).long() // (x * 0).long(),
    "too large": lambda x: torch.ones(1 << 46, device=x.device) + x[0],
}


@pytest.mark.parametrize("name", SPOILS)
def test_an_error_is_raised_once_at_the_read_of_what_it_spoiled_with_the_users_line(name: str) -> None:
    x = data(D, 4)
    good = x * 2
    bad = SPOILS[name](x)
    line = CALL_LINES[name]
    assert good.cpu().shape == (4,), "what does not depend on it has its value"
    with pytest.raises(ExecutionError) as caught:
        bad.sum().item()
    assert f"{THIS_FILE}:{line}" in str(caught.value)
    compare(data("cpu", 4), x)
    compare(data("cpu", 4) * 2, good)
    torchport.wait_device_ops()  # it was raised; it is not raised again


CALL_LINES = {name: call.__code__.co_firstlineno for name, call in SPOILS.items()}


def spoil(x: torch.Tensor) -> torch.Tensor:
    return x[torch.tensor([99], device=D)] * 2


def test_the_message_holds_what_the_backend_said() -> None:
    bad = spoil(data(D, 4))
    with pytest.raises(ExecutionError, match="out of bounds") as caught:
        bad.cpu()
    assert "index" in str(caught.value)


def test_a_barrier_does_not_raise_and_a_wait_does_once() -> None:
    bad = spoil(data(D, 4))
    torchport.sync()
    with pytest.raises(ExecutionError):
        torchport.wait_device_ops()
    torchport.wait_device_ops()
    del bad


def test_an_error_does_not_surface_in_an_unrelated_read() -> None:
    x = data(D, 4)
    bad = spoil(x)
    torchport.sync()
    good = x + 1
    compare(data("cpu", 4) + 1, good)
    assert good.sum().item() == pytest.approx((data("cpu", 4) + 1).sum().item())
    with pytest.raises(ExecutionError):
        bad.cpu()


def test_what_follows_from_a_spoiled_value_is_spoiled_too_and_says_the_first_line() -> None:
    bad = spoil(data(D, 4))
    line = spoil.__code__.co_firstlineno + 1
    torchport.sync()
    later = bad + 1
    torchport.sync()
    last = later * torch.ones(1, device=D)
    with pytest.raises(ExecutionError) as caught:
        last.cpu()
    assert f"{THIS_FILE}:{line}" in str(caught.value)


def test_a_spoiled_tensor_can_be_written_again() -> None:
    x = data(D, 4)
    x.copy_(spoil(x).expand(4))
    torchport.sync()
    with pytest.raises(ExecutionError):
        x.cpu()
    x.copy_(torch.ones(4))
    assert x.cpu().tolist() == [1, 1, 1, 1]
    x.zero_()
    assert (x + 1).sum().item() == 4


def test_a_spoiled_tensor_that_is_dropped_spoils_nothing() -> None:
    bad = spoil(data(D, 4))
    del bad
    gc.collect()
    torchport.sync(wait=True)
    assert torch.ones(2, device=D).sum().item() == 2


def test_the_same_graph_with_good_data_runs_after_it_failed() -> None:
    x = data(D, 4)

    def pick(i: int) -> torch.Tensor:
        return x[torch.tensor([i]).to(D)] + 1

    with pytest.raises(ExecutionError):
        pick(99).cpu()
    torch.testing.assert_close(pick(2).cpu(), data("cpu", 4)[2:3] + 1)
    with pytest.raises(ExecutionError):
        pick(99).cpu()


def test_two_errors_are_two_errors() -> None:
    x = data(D, 4)
    first = x[torch.tensor([98], device=D)]
    second = x[torch.tensor([97], device=D)]
    with pytest.raises(ExecutionError, match="98"):
        first.cpu()
    with pytest.raises(ExecutionError, match="97"):
        second.cpu()


def test_a_training_step_that_fails_leaves_the_parameters_as_they_were() -> None:
    model = nn.Embedding(4, 2).to(D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().cpu().clone()
    loss = model(torch.tensor([99], device=D)).sum()
    loss.backward()
    optimizer.step()
    with pytest.raises(ExecutionError):
        loss.item()
    optimizer.zero_grad()
    compare(before, read_at_last(model.weight.detach()), on_device=False)


def read_at_last(x: torch.Tensor) -> torch.Tensor:
    """The value; an error of the past may surface once first."""
    try:
        return x.cpu()
    except ExecutionError:
        return x.cpu()


class OutOfMemory(InterpreterBackend):
    """Fails as a device fails that has no memory left, as a whole, when told to."""

    fails = False

    def execute_computation(
        self, computation: Computation, arguments: list[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        if type(self).fails:
            raise torch.OutOfMemoryError("tried to allocate 7.00 GiB")
        return super().execute_computation(computation, arguments, device)


@pytest.fixture
def small_device() -> Iterator[type[OutOfMemory]]:
    """A device that can be told to run out of memory."""
    with torchport.BackendRegistrar("small", OutOfMemory):
        torchport.use("small")
        try:
            yield OutOfMemory
        finally:
            OutOfMemory.fails = False
            torchport.use("interpreter")


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_after_running_out_of_memory_the_parameters_hold_their_values_from_before(
    small_device: type[OutOfMemory], name: str
) -> None:
    model = nn.Linear(3, 2).to(D)
    optimizer: Any = getattr(torch.optim, name)(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(data(D, 4, 3)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step().item()
    before = [p.detach().cpu().clone() for p in model.parameters()]
    small_device.fails = True
    loss = step()
    with pytest.raises(ExecutionError, match=r"7\.00 GiB"):
        loss.item()
    small_device.fails = False
    optimizer.zero_grad()
    for p, b in zip(model.parameters(), before, strict=True):
        compare(b, read_at_last(p.detach()), on_device=False)
    assert step().isfinite().item()


BREAKS_THE_CONTRACT = """
import sys
import torch, torchport
from torchport.backend import BackendData, Shape
from torchport.backends.interpreter import InterpreterBackend
from torchport.config import override
from torchport.errors import ExecutionError

class Wrong(InterpreterBackend):
    how = ""
    def execute_computation(self, computation, arguments, device):
        results = super().execute_computation(computation, arguments, device)
        if Wrong.how == "too few results":
            return results[:-1]
        if Wrong.how == "another dtype":
            return [BackendData(device, Shape(torch.int8, r.shape.sizes), r.handle) for r in results]
        if Wrong.how == "a result without a value":
            return [BackendData(device, r.shape) for r in results]
        return results

torchport.register_backend("wrong", Wrong)
torchport.use("wrong")
with override(async_execution=sys.argv[2] == "True", inline_execution_us=0):
    good = torch.ones(4, device="port")
    torchport.sync(wait=True)
    Wrong.how = sys.argv[1]
    bad = good * 2
    torchport.sync()
    try:
        bad.cpu()
    except ExecutionError as error:
        print(type(error).__name__)
    Wrong.how = ""
    print((good + 1).cpu().tolist())
    torchport.sync(wait=True)
"""


# In a process of its own: a device that has stopped would fail every test after this one.
@pytest.mark.subprocess
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("how", ["too few results", "another dtype", "a result without a value"])
def test_a_backend_that_breaks_the_contract_does_not_stop_the_device(how: str, asynchronous: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BREAKS_THE_CONTRACT.replace('"port"', repr(D)), how, str(asynchronous)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ExecutionError\n[2.0, 2.0, 2.0, 2.0]\n"


def test_errors_leave_the_counters_balanced() -> None:
    def alive() -> int:
        gc.collect()
        return metrics.counter_value("CreateLazyTensor") - metrics.counter_value("DestroyLazyTensor")

    def provoke() -> None:
        with pytest.raises(ExecutionError):
            spoil(data(D, 4)).cpu()

    provoke()
    before = alive()
    for _ in range(3):
        provoke()
    assert alive() == before


LATE: dict[str, tuple[type[Exception], Callable[[str], object]]] = {
    "an index": (IndexError, lambda D: torch.arange(3, device=D)[torch.tensor([5], device=D)].cpu()),
    "a word": (IndexError, lambda D: torch.embedding(torch.ones(3, 2, device=D), torch.tensor([7], device=D)).cpu()),
    "a matrix": (torch.linalg.LinAlgError, lambda D: torch.linalg.cholesky(-torch.eye(3, device=D)).cpu()),
    "a division": (RuntimeError, lambda D: (torch.tensor([1], device=D) // torch.tensor([0], device=D)).cpu()),
}


@pytest.mark.parametrize("what", LATE)
def test_an_error_that_comes_late_is_of_the_type_that_eager_raises(what: str) -> None:
    kind, program = LATE[what]
    with pytest.raises(kind):
        program("cpu")
    with pytest.raises(kind):
        program(D)


@pytest.mark.parametrize("asserted", [True, False])
def test_an_operator_without_a_result_runs_at_once(asserted: bool) -> None:
    def outcome(device: str) -> str:
        try:
            return str(torch._assert_async(torch.tensor(asserted, device=device), "it is not so"))
        except RuntimeError as error:
            return str(error)

    assert outcome(D) == outcome("cpu") == ("None" if asserted else "it is not so")
