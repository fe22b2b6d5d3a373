"""Sizes and offsets that move, and sizes that depend on values (cases 14 and 15)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchport
from lazy.cases.oracle import D, Program, check, counted, data, digits

needs_symbols = pytest.mark.skipif(
    "not torchport.get_backend().capabilities.symbolic_sizes", reason="the backend compiles each size"
)

# -- 14: sizes and offsets that move ---------------------------------------------------------------------------------


def cause_of_compiles(steps: Callable[[], object]) -> tuple[int, str]:
    """How many compiles, and what ``explain()`` says."""
    with counted("UncachedCompile") as compiles:
        steps()
        torchport.wait_device_ops()
    return compiles[0], str(torchport.explain())


def test_a_window_that_moves_compiles_a_few_times_and_the_report_names_the_line() -> None:
    a = torch.arange(40.0, device=D)

    def steps() -> None:
        for i in range(20):
            window = a[i : i + 3]
            assert (window * 2).sum().item() == 6 * (i + 1)

    compiles, text = cause_of_compiles(steps)
    assert Path(__file__).name in text
    assert compiles <= 4


def test_an_index_that_moves_compiles_a_few_times() -> None:
    a = torch.arange(40.0, device=D)

    def steps() -> None:
        for i in range(20):
            a[i] += 1
            torchport.sync()

    compiles, _ = cause_of_compiles(steps)
    assert compiles <= 4
    torch.testing.assert_close(a.cpu(), torch.arange(40.0) + (torch.arange(40) < 20))


def grow() -> None:
    sequence = torch.zeros(1, 4, device=D)
    for i in range(16):
        step = torch.tanh(sequence.sum(0, keepdim=True)) + i
        sequence = torch.cat([sequence, step])
        torchport.sync()
    assert sequence.shape == (17, 4)
    sequence.cpu()


@needs_symbols
def test_a_growing_sequence_compiles_a_few_times() -> None:
    compiles, _ = cause_of_compiles(grow)
    assert compiles <= 4


def test_the_report_names_the_line_where_a_sequence_grows() -> None:
    _, text = cause_of_compiles(grow)
    line = grow.__code__.co_firstlineno + 5
    assert f"{Path(__file__).name}:{line}" in text


def test_two_alternating_batch_sizes_compile_once_each_and_the_report_names_the_line() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(D)
    batches = {n: data(D, n, 3) for n in (7, 5)}
    torchport.sync()

    def steps() -> None:
        for n in (7, 5, 7, 5):
            assert model(batches[n]).detach().cpu().shape == (n, 2)

    compiles, text = cause_of_compiles(steps)
    assert compiles <= 2
    assert Path(__file__).name in text


def test_the_report_names_what_differs_between_two_graphs_of_one_line() -> None:
    for n in (7, 5):
        (data(D, n, 3) * 2).cpu()
    text = str(torchport.explain())
    assert "[7, 3]" in text
    assert "[5, 3]" in text


@needs_symbols
def test_many_batch_sizes_compile_a_few_times() -> None:
    model = nn.Linear(3, 4).to(D)
    batches = [data(D, n, 3) for n in range(2, 22)]
    torchport.sync()
    compiles, _ = cause_of_compiles(lambda: [model(b).detach().cpu() for b in batches])
    assert compiles <= 4


def test_a_recompile_has_a_cause_and_a_line() -> None:
    x = data(D, 6)
    (x + 1).cpu()
    (x[:5] + 1).cpu()
    text = str(torchport.explain())
    assert Path(__file__).name in text


# -- 15: sizes that depend on values ---------------------------------------------------------------------------------


def dependent_index(D: str, sync: Callable[[], None]) -> object:
    b = data(D, 40, 4) * 2
    k = (b[:, 2] > 1).nonzero().squeeze(1)
    sync()
    picked = b[k]
    assert 0 < picked.shape[0] < 40
    return k, picked, picked.sum(0)


def dependent_mask(D: str, sync: Callable[[], None]) -> object:
    b = data(D, 40, 4)
    positive = b[b > 0]
    sync()
    rows = b[(b > 0).any(1)]
    return positive, rows, b.masked_select(b < -0.5), positive.mean()


def dependent_unique(D: str, sync: Callable[[], None]) -> object:
    x = digits(D, 6, 30)
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    sync()
    return values, inverse, counts, torch.unique_consecutive(x), x.bincount(), values[inverse]


def dependent_where(D: str, sync: Callable[[], None]) -> object:
    x = data(D, 5, 6)
    rows, columns = torch.where(x > 0.5)
    sync()
    return rows, columns, x[rows, columns], torch.argwhere(x > 1), *torch.nonzero(x < 0, as_tuple=True)


def dependent_repeats(D: str, sync: Callable[[], None]) -> object:
    counts = digits(D, 4, 6)
    x = data(D, 6, 2)
    sync()
    return torch.repeat_interleave(x, counts, dim=0), torch.repeat_interleave(counts)


def dependent_empty(D: str, sync: Callable[[], None]) -> object:
    x = torch.zeros(5, device=D)
    k = x.nonzero()
    sync()
    return k, x[k.squeeze(1)], x[x > 1].sum()


def dependent_gradient(D: str, sync: Callable[[], None]) -> object:
    w = data(D, 20).requires_grad_()
    picked = (w * 2)[w > 0]
    sync()
    picked.square().sum().backward()
    return picked, w.grad


def dependent_write(D: str, sync: Callable[[], None]) -> object:
    x = data(D, 20)
    x[x < 0] = 0
    sync()
    x[x > 1] *= 2
    x[x.nonzero().squeeze(1)[:2]] = torch.tensor([5.0, 6.0], device=D)
    return x


def dependent_range(D: str, sync: Callable[[], None]) -> object:
    n = torch.tensor(5, device=D)
    return torch.arange(int(n + 1), device=D), torch.zeros(int(n), device=D), torch.linspace(0, 1, n.item(), device=D)


@pytest.mark.parametrize(
    "program",
    [
        dependent_index,
        dependent_mask,
        dependent_unique,
        dependent_where,
        dependent_repeats,
        dependent_empty,
        dependent_gradient,
        dependent_write,
        dependent_range,
    ],
    ids=lambda f: f.__name__,
)
def test_sizes_that_depend_on_values_are_the_true_ones(program: Program, barrier: str) -> None:
    check(program, barrier)
