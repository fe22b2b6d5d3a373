"""Barriers, reads and waits: three things, told apart; execution in order, on a bounded queue."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

import torchport
from lazy.cases.oracle import D, compare, counted, counter, data
from torchport import metrics
from torchport.backend import BackendData, BackendDevice, Computation, SyncCause
from torchport.backends.interpreter import InterpreterBackend
from torchport.config import override
from torchport.errors import StrictModeError


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    """Each test starts with an empty trace and an idle device."""
    torchport.sync(wait=True)


# -- the barrier -----------------------------------------------------------------------------------------------------


def test_mark_step_is_the_barrier() -> None:
    assert torchport.mark_step is torchport.sync


def test_operations_are_deferred_until_the_barrier() -> None:
    x = data(D, 4)
    with counted("Execute") as before_the_barrier:
        y = (x * 2).sin() + 1
    with counted("Execute") as at_the_barrier, counted("MarkStep") as barriers:
        torchport.sync(wait=True)
    assert before_the_barrier == [0]
    assert at_the_barrier == [1]
    assert barriers == [1]
    compare((data("cpu", 4) * 2).sin() + 1, y)


def test_a_barrier_with_nothing_pending_executes_nothing() -> None:
    with counted("Execute") as executions, counted("MarkStep") as barriers:
        torchport.sync()
        torchport.sync(wait=True)
    assert executions == [0]
    assert barriers == [2]


def test_a_barrier_makes_one_graph_of_everything_that_is_alive() -> None:
    x = data(D, 4)
    a, b = x + 1, x * 3
    c = a @ b
    with counted("Execute") as executions:
        torchport.sync()
        for t in (a, b, c):
            t.cpu()
    assert executions == [1]


def test_what_nobody_holds_is_not_computed() -> None:
    x = data(D, 4)
    torchport.sync(wait=True)
    x.sin()
    assert "sin" not in torchport.debug.ir_text([x + 1])


def test_a_barrier_after_a_barrier_starts_from_the_data() -> None:
    x = data(D, 4) * 2
    torchport.sync()
    y = x + 1
    text = torchport.debug.ir_text([y])
    assert "mul" not in text
    assert "add" in text


def test_waiting_launches_nothing() -> None:
    x = data(D, 4) * 2
    with counted("Execute") as executions:
        torchport.wait_device_ops()
        torch.accelerator.synchronize()
        torch.get_device_module(D).synchronize()
    assert executions == [0]
    compare(data("cpu", 4) * 2, x)


# -- reads -----------------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[torch.Tensor], object]] = {
    "cpu": lambda t: t.cpu(),
    "item": lambda t: t[0].item(),
    "tolist": lambda t: t.tolist(),
    "print": repr,
    "bool": lambda t: bool(t[0]),
    "float": lambda t: float(t[1]),
    "equal": lambda t: torch.equal(t, t + 0),
    "to": lambda t: t.to("cpu", torch.float64),
    "copy to the host": lambda t: torch.empty(4).copy_(t),
    "format": lambda t: f"{t[0]:.3f}",
    "nonzero": lambda t: t.nonzero(),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_executes_once_and_is_no_barrier(name: str) -> None:
    x = data(D, 4) * 2
    with counted("Execute") as executions, counted("MarkStep") as barriers, counted("ImplicitSync") as reads:
        READS[name](x)
    assert 1 <= executions[0] <= 2
    assert barriers == [0]
    assert reads[0] >= 1 or name == "nonzero", "an output of unknown size is no read of a value"


@pytest.mark.parametrize("name", ["cpu", "tolist", "print", "to", "copy to the host"])
def test_a_read_of_what_is_there_executes_nothing(name: str) -> None:
    x = data(D, 4) * 2
    torchport.sync()
    with counted("Execute") as executions, counted("ImplicitSync") as reads:
        READS[name](x)
    torchport.wait_device_ops()
    assert executions[0] <= 1, "at most the one of the barrier, which may end in here"
    assert reads == [0]
    with counted("Execute") as executions:
        READS[name](x)
    assert executions == [0]


METADATA: dict[str, Callable[[torch.Tensor], object]] = {
    "shape": lambda t: t.shape,
    "stride": lambda t: t.stride(),
    "dtype": lambda t: t.dtype,
    "numel": lambda t: t.numel(),
    "is_contiguous": lambda t: t.t().is_contiguous(),
    "data_ptr": lambda t: t.data_ptr(),
    "len": len,
    "storage": lambda t: t.untyped_storage().nbytes(),
    "view": lambda t: t.view(-1)[1:],
    "hash": hash,
    "is": lambda t: t is t.detach(),
    "version": lambda t: t._version,
    "grad_fn": lambda t: t.grad_fn,
    "backward": lambda t: (t.detach().requires_grad_() * 2).sum().backward(),
}


@pytest.mark.parametrize("name", METADATA)
def test_asking_for_metadata_executes_nothing(name: str) -> None:
    x = data(D, 2, 2) * 2
    with counted("Execute") as executions, counted("ImplicitSync") as reads:
        METADATA[name](x)
    assert executions == [0]
    assert reads == [0]


def test_a_read_computes_what_is_alive_in_one_go() -> None:
    x = data(D, 4)
    a, b = x + 1, x + 2
    with counted("Execute") as executions:
        a.cpu()
        b.cpu()
    assert executions == [1]


class Spy(InterpreterBackend):
    """Remembers why each computation was compiled, and can be held up while it executes."""

    causes: ClassVar[list[SyncCause]] = []
    executed: ClassVar[list[int]] = []
    gate: ClassVar[threading.Event] = threading.Event()

    def compile(self, instances: list[Computation]) -> list[Computation]:
        Spy.causes += [c.cause for c in instances]
        return super().compile(instances)

    def execute_computation(
        self, computation: Computation, arguments: list[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        assert Spy.gate.wait(30), "nobody opened the gate"
        Spy.executed.append(len(computation.graph))
        return super().execute_computation(computation, arguments, device)


@pytest.fixture
def spy() -> Iterator[type[Spy]]:
    """The active backend; its gate is open."""
    Spy.causes, Spy.executed, Spy.gate = [], [], threading.Event()
    Spy.gate.set()
    with torchport.BackendRegistrar("spy", Spy):
        torchport.use("spy")
        try:
            yield Spy
        finally:
            Spy.gate.set()
            torchport.use("interpreter")


def test_each_computation_knows_whether_a_barrier_a_read_or_a_cut_asked_for_it(spy: type[Spy]) -> None:
    kept = data(D, 3) + 1
    torchport.sync()
    assert spy.causes == [SyncCause.BARRIER]
    (kept * 2).cpu()
    assert spy.causes[1:] == [SyncCause.READ]
    with override(max_pending_nodes=10):
        for _ in range(15):
            kept = kept + 1
    assert SyncCause.CUT in spy.causes
    torchport.sync()


def test_explain_tells_reads_from_barriers_with_the_line() -> None:
    x = data(D, 5) * 2.5
    x.cpu()
    text = str(torchport.explain())
    assert "read" in text
    assert Path(__file__).name in text


# -- asynchronous execution ------------------------------------------------------------------------------------------


def test_a_barrier_returns_before_the_execution_has_ended(spy: type[Spy]) -> None:
    x = data(D, 4) * 2
    spy.gate.clear()
    torchport.sync()  # would hang here if it waited
    assert spy.executed == []
    y = x + 1  # tracing goes on
    spy.gate.set()
    torchport.wait_device_ops()
    assert len(spy.executed) == 1
    compare(data("cpu", 4) * 2 + 1, y)


def test_a_barrier_that_waits_has_ended(spy: type[Spy]) -> None:
    kept = data(D, 4) * 2
    torchport.sync(wait=True)
    assert len(spy.executed) == 1
    del kept


def test_without_asynchronous_execution_a_barrier_has_ended(spy: type[Spy]) -> None:
    with override(async_execution=False):
        kept = data(D, 4) * 2
        torchport.sync()
        assert len(spy.executed) == 1
        del kept


def test_computations_run_in_the_order_of_launching(spy: type[Spy]) -> None:
    spy.gate.clear()
    kept = [data(D, 4) + 1]
    torchport.sync()
    kept += [(kept[-1] * 2).sin().cos(), (kept[0] * 3).exp()]
    torchport.sync()
    spy.gate.set()
    torchport.wait_device_ops()
    assert len(spy.executed) == 2
    assert spy.executed[0] < spy.executed[1]
    compare((data("cpu", 4) + 1) * 3, kept[2].log())


def test_a_full_queue_holds_the_program_back(spy: type[Spy]) -> None:
    spy.gate.clear()
    ahead = threading.Semaphore(0)
    x = data(D, 4)

    def run_ahead() -> None:
        nonlocal x
        for _ in range(6):
            x = x + 1
            torchport.sync()
            ahead.release()

    with override(launch_queue_size=2):
        thread = threading.Thread(target=run_ahead)
        thread.start()
        barriers = 0
        while ahead.acquire(timeout=0.5):
            barriers += 1
        assert thread.is_alive(), "six barriers went through a queue of two"
        assert 2 <= barriers <= 4
        spy.gate.set()
        thread.join(30)
        assert not thread.is_alive()
    compare(data("cpu", 4) + 6, x)


def test_a_read_waits_only_for_what_it_needs_to(spy: type[Spy]) -> None:
    done = data(D, 4) * 2
    torchport.sync(wait=True)
    spy.gate.clear()
    later = done + 1
    torchport.sync()
    compare(data("cpu", 4) * 2, done)  # would hang here if it waited for the second one
    spy.gate.set()
    compare(data("cpu", 4) * 2 + 1, later)


def test_an_overwritten_input_keeps_its_value_for_the_execution_in_flight(spy: type[Spy]) -> None:
    x = data(D, 4)
    torchport.sync(wait=True)
    spy.gate.clear()
    y = x * 2
    torchport.sync()
    x.zero_()
    torchport.sync()
    spy.gate.set()
    compare(data("cpu", 4) * 2, y)
    compare(torch.zeros(4), x)


def test_a_new_backend_never_finds_what_one_that_is_gone_has_compiled() -> None:
    ids = set()
    for i in range(20):
        Spy.causes, Spy.gate = [], threading.Event()
        Spy.gate.set()
        with torchport.BackendRegistrar(f"spy{i}", Spy):
            torchport.use(f"spy{i}")
            ids.add(id(torchport.get_backend()))
            compare(data("cpu", 4) * 3, data(D, 4) * 3)
            torchport.use("interpreter")
        assert Spy.causes == [SyncCause.READ]  # compiled anew
        gc.collect()
    assert len(ids) == 20


# -- the cut ---------------------------------------------------------------------------------------------------------


def test_a_graph_that_grows_without_a_barrier_is_cut_and_stays_right() -> None:
    with override(max_pending_nodes=100), counted("GraphCut") as cuts, counted("MarkStep") as barriers:
        x = data(D, 4)
        view = x[1:]
        for i in range(350):
            x.add_(1)
            if i == 200:
                view.mul_(2)
    assert cuts[0] >= 3
    assert barriers == [0]
    wanted = data("cpu", 4) + 201
    wanted[1:] *= 2
    torch.testing.assert_close(x.cpu(), wanted + 149)
    assert "cut" in str(torchport.explain())


def test_a_cut_in_the_middle_of_backward_and_of_an_optimizer_step() -> None:
    def train(device: str) -> list[torch.Tensor]:
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(data("cpu", *p.shape, seed=i))
        model.to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(data(device, 2, 3)).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    wanted = train("cpu")
    for bound in (7, 30):
        with override(max_pending_nodes=bound):
            torch.testing.assert_close(train(D), wanted)


# -- the optimizer's barrier -----------------------------------------------------------------------------------------


def one_step(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.zero_grad()
    model(data(D, 4, 3)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_an_optimizer_step_ends_with_a_barrier(name: str) -> None:
    model = nn.Linear(3, 2).to(D)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    with counted("Execute") as executions, counted("MarkStep") as barriers:
        for _ in range(3):
            one_step(optimizer, model)
        torchport.wait_device_ops()
    assert executions == [3]
    assert barriers == [3]


def test_the_optimizers_barrier_can_be_switched_off() -> None:
    model = nn.Linear(3, 2).to(D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torchport.sync(wait=True)
    with override(barrier_after_optimizer_step=False), counted("Execute") as executions:
        for _ in range(3):
            one_step(optimizer, model)
        torchport.wait_device_ops()
    assert executions == [0]
    assert model.weight.isfinite().all().item()


def test_an_optimizer_of_host_tensors_is_left_alone() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pending = data(D, 3) * 2
    model(torch.ones(1, 3)).sum().backward()
    with counted("MarkStep") as barriers, counted("Execute") as executions:
        optimizer.step()
    assert barriers == [0]
    assert executions == [0]
    compare(data("cpu", 3) * 2, pending)


def test_an_optimizer_of_the_users_own_has_the_barrier_too() -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: None = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad * 0.1)

    model = nn.Linear(3, 2).to(D)
    optimizer = Own(model.parameters())
    with counted("MarkStep") as barriers:
        one_step(optimizer, model)
    assert barriers == [1]


# -- strict mode -----------------------------------------------------------------------------------------------------


def test_strict_mode_nests_and_is_left_by_an_exception() -> None:
    def read() -> None:
        (data(D, 3) * 2).cpu()

    with torchport.set_strict(implicit_sync=True):
        with torchport.set_strict(implicit_sync=False):
            read()
        with pytest.raises(StrictModeError):
            read()
    with pytest.raises(ZeroDivisionError), torchport.set_strict(implicit_sync=True):
        raise ZeroDivisionError
    read()


def test_strict_mode_allows_barriers_waits_and_metadata() -> None:
    with torchport.set_strict(implicit_sync=True):
        x = data(D, 4) * 2
        torchport.sync(wait=True)
        assert x.shape == (4,)
        assert x.cpu().shape == (4,)


# -- counters --------------------------------------------------------------------------------------------------------


def test_the_counters_of_the_public_surface_count() -> None:
    metrics.reset()
    x = data(D, 3)
    y = torch.sigmoid(x * 2)
    torchport.sync(wait=True)
    for name in ("CreateLazyTensor", "MarkStep", "Execute", "lazy::mul", "lazy::sigmoid"):
        assert counter(name) >= 1, name
        assert name in metrics.counter_names()
        assert metrics.snapshot()[name] == counter(name)
        assert name in metrics.report()
    assert counter("UncachedCompile") + counter("CachedCompile") == 1
    del x, y
    assert counter("DestroyLazyTensor") >= 1
    metrics.reset()
    assert counter("Execute") == 0
