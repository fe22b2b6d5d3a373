"""Long graphs, long runs, and what is left of them (cases 17 and 18)."""

from __future__ import annotations

import gc
import resource
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchport
from lazy.cases.oracle import D, check, counted, counter, data
from torchport.config import override


def resident_mb() -> float:
    """The memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


# -- 17: graphs that grow --------------------------------------------------------------------------------------------


def chain_of_additions(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x + 1
    return x


def chain_of_mixed_ops(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        x = (x * 1.0001).sin() if i % 2 else x.reshape(2, -1).t().reshape(-1)
    return x


def chain_of_in_place_writes(x: torch.Tensor, n: int) -> torch.Tensor:
    x = x.clone()
    for i in range(n):
        x[i % 4].add_(1)
    return x


def chain_of_views(x: torch.Tensor, n: int) -> torch.Tensor:
    base = x.clone()
    view = base
    for _ in range(n):
        view = view.view(2, -1).view(-1)
    view.add_(1)
    return base


def chain_that_forks(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x
    for _ in range(n // 2):
        x, y = (x + y) * 0.5, (x - y) * 0.5
    return x + y


CHAINS = [chain_of_additions, chain_of_mixed_ops, chain_of_in_place_writes, chain_of_views, chain_that_forks]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda f: f.__name__)
def test_three_thousand_operations_without_a_barrier(
    chain: Callable[[torch.Tensor, int], torch.Tensor], barrier: str
) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        check(lambda D, sync: chain(data(D, 8), 3000), barrier)
    finally:
        sys.setrecursionlimit(limit)


def test_backward_through_three_thousand_operations() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        w = data(D, 8).requires_grad_()
        chain_of_mixed_ops(w, 3000).sum().backward()
        return w.grad

    check(program, "barrier after")


def test_dropping_a_long_graph_that_was_never_run() -> None:
    x = data(D, 8)
    kept = weakref.ref(x)
    y = chain_of_additions(x, 3000)
    del x, y
    gc.collect()
    assert kept() is None
    torchport.sync()


def test_five_hundred_steps_without_a_barrier_give_the_right_values() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        w = data(D, 4, 4)
        x = data(D, 8, 4, seed=2)
        with torch.no_grad():
            for _ in range(500):
                gradient = x.t() @ (x @ w - 1)
                w -= 0.01 * gradient
        return w

    check(program)


def test_a_graph_without_a_barrier_is_cut_before_it_grows_without_end() -> None:
    with override(max_pending_nodes=500), counted("Execute") as executions:
        x = chain_of_additions(data(D, 8), 5000)
        torchport.wait_device_ops()
    assert executions[0] >= 5
    torch.testing.assert_close(x.cpu(), data("cpu", 8) + 5000, rtol=1e-5, atol=1e-3)


def test_unsynced_steps_do_not_grow_in_memory() -> None:
    model, x = nn.Linear(64, 64).to(D), data(D, 32, 64)

    def steps(n: int) -> None:
        for _ in range(n):
            model.zero_grad()
            model(x).square().mean().backward()

    with override(max_pending_nodes=1000):
        steps(300)
        torchport.wait_device_ops()
        before = resident_mb()
        steps(500)
        torchport.wait_device_ops()
        assert resident_mb() - before < 20


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "cpu": lambda t: t.cpu(),
    "tolist": lambda t: t.tolist(),
    "numpy of the copy": lambda t: t.cpu().numpy(),
    "print": str,
}


@pytest.mark.parametrize("name", READS)
def test_a_second_read_runs_nothing_again(name: str) -> None:
    x = chain_of_additions(data(D, 8), 50)
    READS[name](x)
    with counted("Execute") as executions, counted("UncachedCompile") as compiles:
        READS[name](x)
        x.cpu()
    assert executions == [0]
    assert compiles == [0]


def test_reading_in_a_loop_never_runs_the_past_again() -> None:
    x = data(D, 8)
    ran: list[int] = []

    def expensive(t: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return t * 1.01

    x.cpu()
    before = counter("Execute")
    for _ in range(20):
        x = expensive(x)
        x.sum().item()
    assert counter("Execute") - before <= 20


def test_a_read_leaves_the_rest_pending_or_done_but_never_wrong() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        x = data(D, 8)
        y, z = x * 2, x * 3
        y.sum().item()
        z += y
        z[0].item()
        x.zero_()
        return x, y, z

    for barrier in ("no barrier", "barrier after"):
        check(program, barrier)


# -- 18: balance and flat memory -------------------------------------------------------------------------------------


def alive() -> int:
    gc.collect()
    torchport.wait_device_ops()
    gc.collect()
    return counter("CreateLazyTensor") - counter("DestroyLazyTensor")


def a_training_step() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).to(D)
    optimizer = torch.optim.Adam(model.parameters())
    F.mse_loss(model(data(D, 8, 4)), data(D, 8, 2)).backward()
    optimizer.step()


def views_and_writes() -> None:
    a = torch.arange(12.0, device=D).view(3, 4)
    parts = a.chunk(2, 1)
    parts[0].add_(1)
    a.data = a.data + 1
    a.set_(torch.zeros(3, device=D))


def an_error_at_the_call() -> None:
    x = torch.ones(3, device=D)
    with pytest.raises(RuntimeError):
        x + torch.ones(4, device=D)


def an_error_in_a_reference_cycle() -> None:
    x = torch.ones(3, device=D)
    holder: list[object] = [x]
    holder.append(holder)


def printing_and_reading() -> None:
    x = data(D, 5) * 2
    str(x)
    x.tolist()


def copies() -> None:
    import copy

    model = nn.Linear(3, 3).to(D)
    copy.deepcopy(model)
    model.to("cpu")


def a_hook_and_a_double_backward() -> None:
    w = data(D, 3).requires_grad_()
    w.register_hook(lambda g: g * 2)
    (g,) = torch.autograd.grad(w.pow(3).sum(), w, create_graph=True)
    g.sum().backward()


@pytest.mark.parametrize(
    "work",
    [
        a_training_step,
        views_and_writes,
        an_error_at_the_call,
        an_error_in_a_reference_cycle,
        printing_and_reading,
        copies,
        a_hook_and_a_double_backward,
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("synced", [False, True])
def test_what_is_created_is_destroyed(work: Callable[[], None], synced: bool) -> None:
    def once() -> None:
        work()
        if synced:
            torchport.sync()

    once()
    before = alive()
    for _ in range(3):
        once()
    assert alive() == before


def test_a_tensor_is_counted_while_it_lives() -> None:
    before = alive()
    x = torch.ones(3, device=D)
    view = x[1:]
    y = x + 1
    assert alive() == before + 2
    del x, y
    assert alive() == before + 1, "the view keeps the storage"
    del view
    assert alive() == before


def flat_over(steps: int, warm_up: int, step: Callable[[int], None], bound_mb: float) -> None:
    for i in range(warm_up):
        step(i)
    torchport.wait_device_ops()
    gc.collect()
    before, living = resident_mb(), alive()
    for i in range(warm_up, warm_up + steps):
        step(i)
    torchport.wait_device_ops()
    gc.collect()
    assert resident_mb() - before < bound_mb
    assert alive() == living


def training() -> Callable[[int], None]:
    """A training step whose learning rate is another one each time."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(D)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x, y = data(D, 16, 8), data(D, 16, 4)

    def step(i: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            loss.item()

    return step


def test_memory_is_flat_over_a_thousand_training_steps() -> None:
    flat_over(1000, 200, training(), bound_mb=8)


@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_training_steps() -> None:
    flat_over(10_000, 500, training(), bound_mb=8)


def test_memory_is_flat_over_new_inputs_of_changing_sizes() -> None:
    model = nn.Linear(8, 4).to(D)

    def step(i: int) -> None:
        model(torch.ones(1 + i % 5, 8).to(D)).sum().item()

    flat_over(1000, 200, step, bound_mb=8)


def test_memory_is_flat_when_nothing_is_ever_read() -> None:
    x = data(D, 64, 64)

    def step(i: int) -> None:
        x.mul_(0.999).add_(float(i))
        torchport.sync()

    flat_over(1000, 200, step, bound_mb=8)


def test_the_data_of_a_dropped_tensor_is_freed() -> None:
    big = torch.ones(32, 2**20, device=D)  # 128 MiB
    big.sum().item()
    before = resident_mb()
    del big
    gc.collect()
    torchport.wait_device_ops()
    assert before - resident_mb() > 100


def test_an_intermediate_result_does_not_outlive_its_use() -> None:
    x = torch.ones(8, 2**20, device=D)  # 32 MiB
    x.sum().item()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    y = x
    for _ in range(30):
        y = y + 1
    assert y[0, 0].item() == 31
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert peak - before < 300, "30 results of 32 MiB must not be alive at once"
