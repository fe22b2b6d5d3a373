"""One loaded program, called by many threads at once, through torchport_runtime and through torchport."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchport_runtime
from aot.subjects import Blocks, Cache, Switched, registered, spec_of
from torchport import metrics
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport_runtime.backends import unregister_backend
from torchport_runtime.interpreter.backend import NumpyBackend

THREADS = 8
ROUNDS = 25


class Loaded:
    """A program of either package, with torch's tensors in and out."""

    def __init__(self, package: str, path: Path) -> None:
        self.program: Any = torchport_runtime.load(path) if package == "torchport_runtime" else load(path)
        self._is_numpy = package == "torchport_runtime"

    def call(self, method: str, x: torch.Tensor) -> torch.Tensor:
        result = getattr(self.program, method)(x.numpy() if self._is_numpy else x)
        return torch.from_numpy(result) if self._is_numpy else result

    def state(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.program.state[name]) if self._is_numpy else self.program.get_buffer(name).clone()


@pytest.fixture(params=["torchport_runtime", "torchport"])
def package(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def _threads_that_change_often() -> Iterator[None]:
    """Where one thread could disturb another it soon does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """The results of that many threads, all of which begin at one time."""
    start = threading.Barrier(count)

    def run(i: int) -> Any:
        start.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


class Pairs(nn.Module):
    """Two states that are always equal between two calls, and a method that sees both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("left", torch.zeros(3))
        self.register_buffer("right", torch.zeros(3))

    def forward(self, x):
        self.left.add_(x)
        self.right.add_(x)
        return self.left + 0

    def difference(self, x):
        return self.left - self.right + 0 * x


def pairs(path: Path) -> None:
    x = torch.ones(3)
    to_backend("interpreter", Pairs(), {n: CompileSpec((x,)) for n in ("forward", "difference")}).save(path)


def test_a_stateless_program_gives_each_thread_its_own_results(package: str, tmp_path: Path) -> None:
    module = Blocks().eval()
    to_backend("interpreter", module, spec_of(torch.randn(3, 6))).save(tmp_path / "m.tport")
    loaded = Loaded(package, tmp_path / "m.tport")
    inputs = [[torch.randn(3, 6) for _ in range(ROUNDS)] for _ in range(THREADS)]
    results = at_once(lambda i: [loaded.call("forward", x) for x in inputs[i]])
    for own, got in zip(inputs, results, strict=True):
        for x, y in zip(own, got, strict=True):
            torch.testing.assert_close(y, module(x).detach())


def test_no_update_of_a_state_is_lost(package: str, tmp_path: Path) -> None:
    pairs(tmp_path / "m.tport")
    loaded = Loaded(package, tmp_path / "m.tport")
    results = at_once(lambda i: [float(loaded.call("forward", torch.ones(3))[0]) for _ in range(ROUNDS)])
    # Each call saw the total after another number of calls: as if they had been made one after the other.
    assert list(range(1, THREADS * ROUNDS + 1)) == sorted(int(y) for own in results for y in own)
    for own in results:
        assert sorted(own) == own
    assert THREADS * ROUNDS == int(loaded.state("left")[0])


def test_a_cache_has_a_row_of_every_call(package: str, tmp_path: Path) -> None:
    rows = torch.randn(THREADS, 6, 4)
    to_backend("interpreter", Cache(length=THREADS * 6).eval(), spec_of(rows[0, 0])).save(tmp_path / "m.tport")
    loaded = Loaded(package, tmp_path / "m.tport")
    at_once(lambda i: [loaded.call("forward", x) for x in rows[i]])
    assert THREADS * 6 == int(loaded.state("position"))
    keys = loaded.state("keys")
    order = [next(i for i, key in enumerate(keys) if torch.equal(key, x)) for x in rows.reshape(-1, 4)]
    assert list(range(THREADS * 6)) == sorted(order)
    for own in range(THREADS):  # a thread's calls are in its own order
        assert sorted(order[6 * own : 6 * own + 6]) == order[6 * own : 6 * own + 6]


def test_a_method_that_reads_state_sees_no_half_of_an_update(package: str, tmp_path: Path) -> None:
    pairs(tmp_path / "m.tport")
    loaded = Loaded(package, tmp_path / "m.tport")
    method = ["forward", "difference"]
    results = at_once(lambda i: [loaded.call(method[i % 2], torch.ones(3)) for _ in range(ROUNDS)])
    for own in results[1::2]:
        for y in own:
            torch.testing.assert_close(y, torch.zeros(3), rtol=0, atol=0)


def test_two_programs_of_one_file_share_no_state(package: str, tmp_path: Path) -> None:
    pairs(tmp_path / "m.tport")
    before = (tmp_path / "m.tport").read_bytes()
    two = [Loaded(package, tmp_path / "m.tport") for _ in range(2)]
    at_once(lambda i: [two[i % 2].call("forward", torch.full((3,), 1.0 + i % 2)) for _ in range(ROUNDS)])
    assert [THREADS // 2 * ROUNDS * n for n in (1, 2)] == [int(one.state("left")[0]) for one in two]
    assert before == (tmp_path / "m.tport").read_bytes()
    assert 1.0 == float(Loaded(package, tmp_path / "m.tport").call("forward", torch.ones(3))[0])


def test_a_file_that_is_saved_between_calls_is_whole(tmp_path: Path) -> None:
    pairs(tmp_path / "m.tport")
    loaded = load(tmp_path / "m.tport")

    def work(i: int) -> None:
        for k in range(ROUNDS):
            if i % 2:
                loaded(torch.ones(3))
            elif k % 5 == 0:
                loaded.save(tmp_path / f"saved{i}.tport")
                saved = load(tmp_path / f"saved{i}.tport")
                assert torch.equal(saved.left, saved.right)

    at_once(work)


def test_threads_that_fall_back_at_once_make_one_note_and_every_call_counts(tmp_path: Path) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    backend = Switched()
    with registered("switched", backend):
        lowered = to_backend("switched", module, spec_of(x), fallback="interpreter")
        backend.broken.add("execute")
        before = metrics.counter_value("DelegateFallback")
        with pytest.warns(UserWarning, match="out of luck") as seen:
            results = at_once(lambda i: [lowered(x) for _ in range(ROUNDS)])
    assert len(seen) == 1
    assert before + THREADS * ROUNDS == metrics.counter_value("DelegateFallback")
    assert f"({THREADS * ROUNDS} calls in the interpreter)" in lowered.explain()
    for own in results:
        for y in own:
            torch.testing.assert_close(y, module(x).detach())


class Fails(NumpyBackend):
    """Loads every part, and runs none."""

    def load(self, payload: memoryview, options: object) -> Callable[[list[Any], list[Any]], list[Any]]:
        def run(arrays: list[Any], numbers: list[Any]) -> list[Any]:
            raise RuntimeError("out of luck")

        return run


def test_the_same_without_torch(tmp_path: Path) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    with registered("fails", Switched()):
        to_backend("fails", module, spec_of(x), fallback="interpreter").save(tmp_path / "m.tport")
    torchport_runtime.register_backend("fails", Fails())
    try:
        program = torchport_runtime.load(tmp_path / "m.tport")
        with pytest.warns(UserWarning, match="out of luck") as seen:
            results = at_once(lambda i: [program(x.numpy()) for _ in range(ROUNDS)])
    finally:
        unregister_backend("fails")
    assert len(seen) == 1
    assert f"numpy ({THREADS * ROUNDS} calls)" in program.explain()
    for own in results:
        for y in own:
            np.testing.assert_allclose(y, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
