"""Programs for all sizes: equal to eager for each of them, few compiles, and no size taken for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchport
from lazy.cases.oracle import D, compare, counted, data, digits, made, run
from torchport.backend import BackendRegistrar, Computation
from torchport.backends.interpreter import InterpreterBackend
from torchport.config import override
from torchport.lazy import active
from torchport.lazy.size_families import Family

SIZES = (7, 5, 9, 2, 12, 5, 31)


def training(model: Callable[[], nn.Module], batch: Callable[[str, int], torch.Tensor]) -> Callable[..., object]:
    def program(device: str, sync: Callable[[], None]) -> object:
        trained = made(model, device)
        optimizer = torch.optim.SGD(trained.parameters(), lr=1e-2, momentum=0.9)
        losses = []
        for n in SIZES:
            optimizer.zero_grad()
            loss = trained(batch(device, n)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, dict(trained.named_parameters())

    return program


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)), lambda d, n: data(d, n, 3)),
    "dropout": (lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.4), nn.Linear(8, 2)), lambda d, n: data(d, n, 3)),
    "cnn": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        lambda d, n: data(d, n, 3, 8, 8),
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
        lambda d, n: data(d, n, 4, 8),
    ),
    "attention over a growing sequence": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda d, n: data(d, 3, n, 8),
    ),
    "recurrent": (lambda: nn.GRUCell(3, 4), lambda d, n: data(d, n, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_with_changing_sizes_equals_eager(name: str) -> None:
    program = training(*MODELS[name])
    wanted = run(program, "cpu")
    with counted("UncachedCompile") as compiles:
        got = run(program, D)
    compare(wanted, got)
    assert compiles[0] <= 5  # the first step, the second one (it finds optimizer state), each once more with symbols


def test_two_hundred_batch_sizes_are_a_handful_of_compiles() -> None:
    trained = {d: made(MODELS["mlp"][0], d) for d in ("cpu", D)}
    optimizers = {d: torch.optim.AdamW(m.parameters(), lr=1e-3) for d, m in trained.items()}
    sizes = torch.randperm(200, generator=torch.Generator().manual_seed(0)) + 2
    with counted("UncachedCompile") as compiles:
        for n in sizes.tolist():
            losses = {}
            for device, model in trained.items():
                optimizers[device].zero_grad()
                loss = model(data(device, n, 3)).square().mean()
                loss.backward()
                optimizers[device].step()
                losses[device] = loss.item()
            assert losses[D] == pytest.approx(losses["cpu"], rel=1e-5)
    assert compiles[0] <= 5


def independent_sizes(device: str, sync: Callable[[], None]) -> object:
    found = []
    for rows, columns in ((4, 4), (6, 6), (6, 9), (3, 8), (5, 5), (8, 3), (4, 4)):
        a, b = data(device, rows, columns), data(device, columns, 5)
        found += [a @ b, a.t().reshape(-1), torch.cat([a, a]).flip(0), a[1:].mean(1), F.pad(a, (1, 2))]
        sync()
    return found


def test_sizes_that_were_equal_by_chance_become_two_symbols() -> None:
    wanted = run(independent_sizes, "cpu")
    with counted("UncachedCompile") as compiles:
        got = run(independent_sizes, D, "barrier between")
    compare(wanted, got)
    assert compiles[0] <= 3  # 4x4; rows and columns as one symbol; as two


def test_positions_that_are_counted_follow_the_sizes() -> None:
    table = data(D, 40, 4)
    with counted("UncachedCompile") as compiles:
        for n in range(3, 12):
            positions = torch.arange(n, device=D) + torch.arange(1, n + 1, device=D)
            assert torch.equal(table[positions].cpu(), data("cpu", 40, 4)[torch.arange(n) * 2 + 1])
    assert compiles[0] <= 3


def test_two_independent_symbols_are_checked_not_guessed() -> None:
    family = Family.of_integers([4, 4, 3, 8]).with_graph([6, 6, 3, 12])
    assert family.symbols() == ["s0", "s0", None, "s1"]
    assert family.admits([5, 5, 3, 10])
    assert family.admits([5, 5, 3, 11])
    assert not family.admits([5, 7, 3, 10])
    assert not family.admits([5, 5, 4, 10])
    finer = family.with_graph([5, 7, 3, 10])
    assert finer.symbols() == ["s0", "s1", None, "s2"]
    assert finer.admits([6, 6, 3, 12])


def strided(device: str, sync: Callable[[], None]) -> object:
    found = []
    for n in (4, 7, 5):
        x = data(device, n, 6).t()
        y = x.clone()
        y[:, ::2] += 1
        y.diagonal().zero_()
        found += [y, y.as_strided((2, 3), (1, 2)), x.contiguous().unfold(1, 2, 1).sum(-1), torch.rand_like(y)]
        z = data(device, n, 3, 4, 4).to(memory_format=torch.channels_last)
        found += [z * 2, F.dropout(z, 0.5), z.sum(1)]
        sync()
    return found


def test_layouts_follow_the_sizes() -> None:
    compare(run(strided, "cpu"), run(strided, D, "barrier between"))


def test_sizes_that_depend_on_values_change_without_a_compile_each() -> None:
    with counted("UncachedCompile") as compiles:
        for n in range(3, 15):
            x = digits(D, 3, 40, seed=n)
            positions = (x == 1).nonzero().squeeze(1)
            assert torch.equal(x.cpu()[positions.cpu()], torch.ones(len(positions), dtype=torch.int64))
            assert (x[positions] + 1).sum().item() == 2 * len(positions)
    assert compiles[0] <= 8


def test_updates_in_place_still_reuse_the_parameters_buffers() -> None:
    model = made(lambda: nn.Linear(16, 16, bias=False), D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backend = active.backend()
    donated = []
    for n in (4, 5, 6, 7):
        optimizer.zero_grad(set_to_none=True)
        model(data(D, n, 16)).sum().backward()
        optimizer.step()
        torchport.wait_device_ops()
        donated.append(backend.get_metrics()["donated_buffers"])
    assert donated[3] - donated[2] == 1


def test_it_can_be_turned_off() -> None:
    with override(symbolic_sizes=False), counted("UncachedCompile") as compiles:
        for n in range(30, 36):
            (data(D, n) * 3 + n).cpu()
    assert compiles[0] == 6


class RefusesSymbols(InterpreterBackend):
    """A compiler whose symbolic sizes do not work for some graphs."""

    def compile(self, instances: list[Computation]) -> list[Computation]:
        for computation in instances:
            if any(any(s.symbolic) for s in computation.result_shape):
                raise RuntimeError("no symbols, please")
        return super().compile(instances)


@pytest.fixture
def refusing() -> Iterator[None]:
    with BackendRegistrar("refuses-symbols", RefusesSymbols):
        torchport.use("refuses-symbols")
        yield
        torchport.use("interpreter")


@pytest.mark.usefixtures("refusing")
def test_a_graph_whose_symbols_fail_to_compile_is_compiled_for_each_size() -> None:
    for n in (3, 4, 5, 6):
        assert torch.equal((data(D, n) * 2).cpu(), data("cpu", n) * 2)


def test_the_report_says_which_sizes_became_symbols() -> None:
    for n in (41, 43):  # a graph that no other test makes
        data(D, n, 3).sinh().cosh().tanh().cpu()
    assert "sizes become symbols: s0=43" in str(torchport.explain())
