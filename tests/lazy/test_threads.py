"""Threads that record into one trace: right results, graphs that do not depend on how their operations mix."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import torchport
from lazy.cases.oracle import D, counted, data, made
from torchport.lazy import active


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


def trained(device: str, steps: int, seed: int) -> nn.Module:
    model = made(network, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = data(device, 11, 5, seed=seed), data(device, 11, 1, seed=seed + 100)
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_four_threads_that_train_compile_what_one_compiles() -> None:
    trained(D, 3, 0)
    with ThreadPoolExecutor(4) as pool, counted("UncachedCompile") as compiles:
        models = list(pool.map(lambda seed: trained(D, 40, seed), range(4)))
    for seed, model in enumerate(models):
        wanted = trained("cpu", 40, seed).state_dict()
        for name, got in model.state_dict().items():
            torch.testing.assert_close(got.cpu(), wanted[name])
    assert compiles[0] <= 2


def test_four_threads_that_read_every_step_compile_what_one_compiles() -> None:
    weights = made(network, D)
    host = made(network, "cpu")

    def answers(seed: int) -> list[float]:
        return [weights(data(D, 3, 5, seed=10 * seed + i)).sum().item() for i in range(30)]

    answers(0)
    with ThreadPoolExecutor(4) as pool, counted("UncachedCompile") as compiles:
        got = list(pool.map(answers, range(4)))
    wanted = [[host(data("cpu", 3, 5, seed=10 * s + i)).sum().item() for i in range(30)] for s in range(4)]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted))
    assert compiles[0] <= 2


@contextmanager
def in_the_middle(record: Callable[[], object]) -> Iterator[list[object]]:
    """Another thread has recorded something and is alive; what it returned is in the list."""
    recorded, finish = threading.Event(), threading.Event()
    result: list[object] = []

    def work() -> None:
        result.append(record())
        recorded.set()
        finish.wait()

    worker = threading.Thread(target=work)
    worker.start()
    recorded.wait()
    try:
        yield result
    finally:
        finish.set()
        worker.join()


def test_a_barrier_leaves_pending_what_another_thread_is_in_the_middle_of() -> None:
    weight = data(D, 4, 3)
    torchport.sync()
    with in_the_middle(lambda: weight.t() * 2) as others:
        mine = weight[1:] + 1
        torchport.sync()
        assert active.trace.operations == 2  # the view and the product
        torch.testing.assert_close(mine.cpu(), data("cpu", 4, 3)[1:] + 1)
        assert active.trace.operations == 2
        torch.testing.assert_close((weight[1:] - 1).cpu(), data("cpu", 4, 3)[1:] - 1)  # the same view, recorded again
        (product,) = others
        assert isinstance(product, torch.Tensor)
        torch.testing.assert_close(product.cpu(), data("cpu", 4, 3).t() * 2)
        assert active.trace.operations == 0


def test_a_barrier_of_a_thread_that_has_recorded_nothing_launches_nothing() -> None:
    with in_the_middle(lambda: data(D, 4) + 1) as others:
        data(D, 4).add_(1)
        torchport.sync()
        torchport.sync()
        assert active.trace.operations == 1
        (other,) = others
        assert isinstance(other, torch.Tensor)
        torch.testing.assert_close(other.cpu(), data("cpu", 4) + 1)


def test_what_a_thread_that_is_gone_has_recorded_is_launched_by_any_other() -> None:
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: data(D, 4) + 1).result()
    mine = data(D, 4) * 2
    torchport.sync()
    assert active.trace.operations == 0
    torch.testing.assert_close(other.cpu() + mine.cpu(), data("cpu", 4) * 3 + 1)


def test_random_numbers_come_in_the_order_in_which_they_were_asked_for() -> None:
    torch.manual_seed(3)
    wanted = [torch.rand(2), torch.rand(3)]
    torch.manual_seed(3)
    first = torch.rand(2, device=D)
    second = torch.rand(3, device=D)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(lambda: second[:].cpu()).result()
    torch.testing.assert_close([first.cpu(), got], wanted)


def test_what_depends_on_each_other_is_launched_together() -> None:
    with in_the_middle(lambda: data(D, 4) + 1) as others:
        (other,) = others
        assert isinstance(other, torch.Tensor)
        mine = other * 2
        other.add_(5)
        torchport.sync()
        assert active.trace.operations == 0
        torch.testing.assert_close(mine.cpu(), (data("cpu", 4) + 1) * 2)
        torch.testing.assert_close(other.cpu(), data("cpu", 4) + 6)


def test_the_hash_of_what_is_taken_out_and_of_what_stays_is_that_of_each_alone() -> None:
    a, b = data(D, 4, 3), data(D, 4, 3)
    torchport.sync(wait=True)

    def one() -> torch.Tensor:
        return (a * b).sum(0)

    def two() -> torch.Tensor:
        return (b - a).exp()

    hashes = []
    for record in (one, two):
        kept = record()
        hashes.append(active.trace.hash)
        torchport.sync()
        del kept
    first, second = a * b, b - a
    first, second = first.sum(0), second.exp()
    trace = active.trace
    staying = frozenset(id(n) for n in trace.nodes if n.call.name in ("aten.sub.Tensor", "aten.exp.default"))
    assert len(staying) == 2
    taken = trace.split(staying)
    assert [taken.hash, trace.hash] == hashes
    trace.absorb(taken)
    assert trace.operations == 4
    torch.testing.assert_close(first.cpu(), one().cpu())
    torch.testing.assert_close(second.cpu(), two().cpu())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_launch_that_is_interrupted_loses_nothing(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_the_middle(lambda: data(D, 4) + 1) as others:
        mine = data(D, 4) * 3
        with monkeypatch.context() as patch:

            def compiled_trace(*args: object) -> None:
                raise error

            patch.setattr("torchport.lazy.sync.compiled_trace", compiled_trace)
            with pytest.raises(error):
                torchport.sync()
        torchport.sync()
        torch.testing.assert_close(mine.cpu(), data("cpu", 4) * 3)
        (other,) = others
        assert isinstance(other, torch.Tensor)
        torch.testing.assert_close(other.cpu(), data("cpu", 4) + 1)
