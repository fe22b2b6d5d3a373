"""An operator that the backend lacks runs eagerly, and nobody but the counters can tell (case 25)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torchport
from lazy.cases.oracle import D, check, compare, counted, counter, data, digits, no_compile
from torchport import metrics
from torchport.backend import Node
from torchport.backend.capabilities import Support
from torchport.backends.interpreter import InterpreterBackend
from torchport.errors import StrictModeError

Sync = Callable[[], None]

LACKING = ("sin", "cumsum", "sort", "add", "mm", "index_put", "max", "native_dropout", "bernoulli", "uniform", "relu")


class Lacking(InterpreterBackend):
    """The interpreter without some common operators."""

    def supports(self, node: Node) -> Support:
        name = str(node.op).removeprefix("aten.").split(".")[0].strip("_")
        if name in LACKING:
            return Support(False, f"{name} is left out on purpose")
        return super().supports(node)


@pytest.fixture(autouse=True)
def a_backend_that_lacks_operators() -> Iterator[None]:
    """Active in every test of this file; the interpreter is again the active one afterwards."""
    with torchport.BackendRegistrar("lacking", Lacking):
        torchport.use("lacking")
        metrics.reset()
        try:
            yield
        finally:
            torchport.use("interpreter")


def plain(D: str, sync: Sync) -> object:
    x = data(D, 3, 4)
    y = x.sin() * 2
    sync()
    return y, y.cumsum(1), (y @ x.t()) - 1, *x.sort(dim=1)


def in_place(D: str, sync: Sync) -> object:
    x = data(D, 3, 4)
    view = x[1]
    x.sin_()
    sync()
    x.add_(1, alpha=2)
    return x, view


def in_place_through_views(D: str, sync: Sync) -> object:
    x = data(D, 3, 4)
    returned = x[1:, ::2].sin_()
    sync()
    x.t()[2].add_(x[0, 0])
    returned.relu_()
    return x, returned


def out(D: str, sync: Sync) -> object:
    x = data(D, 3, 4)
    y = torch.zeros(3, 4, device=D)
    returned = torch.sin(x, out=y)
    sync()
    z = torch.empty(0, device=D)
    torch.cumsum(x, 1, out=z)
    torch.mm(x, x.t(), out=torch.zeros(3, 3, device=D))
    return y, returned, z


def out_into_views(D: str, sync: Sync) -> object:
    x = data(D, 3, 4)
    base = torch.zeros(4, 6, device=D)
    torch.sin(x, out=base[1:, 2:])
    sync()
    torch.add(x[0], 1, out=base.t()[0])
    return base


def out_of_several(D: str, sync: Sync) -> object:
    x = data(D, 3, 4)
    values, indices = torch.zeros(3, 4, device=D), torch.zeros(3, 4, dtype=torch.int64, device=D)
    torch.sort(x, dim=1, out=(values[:], indices[:]))
    sync()
    top, where = torch.empty(3, device=D), torch.empty(3, dtype=torch.int64, device=D)
    torch.max(x, dim=1, out=(top, where))
    return values, indices, top, where


def indexed_writes(D: str, sync: Sync) -> object:
    x = data(D, 6, 3)
    x[digits(D, 6, 4)] = 7
    sync()
    x.t().index_put_((torch.tensor([0, 2], device=D),), torch.ones(6, device=D), accumulate=True)
    return x


def chains(D: str, sync: Sync) -> object:
    x = data(D, 5)
    for i in range(10):
        x = (x.sin() + i) * 0.5
        if i == 4:
            sync()
    return x


def with_gradients(D: str, sync: Sync) -> object:
    w = data(D, 4, 4).requires_grad_()
    y = (w.sin() @ w).relu()
    sync()
    y.cumsum(0).square().sum().backward()
    return y, w.grad


def numbers_and_scalars(D: str, sync: Sync) -> object:
    x = digits(D, 9, 4)
    return x + 1.5, torch.add(x, True), x + torch.tensor(2.5), torch.tensor(1.0, device=D) + x


def unusual_layouts(D: str, sync: Sync) -> object:
    x = data(D, 2, 3, 4, 4).to(memory_format=torch.channels_last)
    return x.sin(), x.permute(0, 3, 1, 2).sin(), x[:, :, 0].expand(2, 3, 4).relu()


@pytest.mark.parametrize(
    "program",
    [
        plain,
        in_place,
        in_place_through_views,
        out,
        out_into_views,
        out_of_several,
        indexed_writes,
        chains,
        with_gradients,
        numbers_and_scalars,
        unusual_layouts,
    ],
    ids=lambda f: f.__name__,
)
def test_a_fallback_keeps_the_semantics(program: Callable[[str, Sync], object], barrier: str) -> None:
    check(program, barrier)


def test_a_fallback_draws_random_numbers_from_the_same_stream(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        x = data(D, 8)
        first = torch.nn.functional.dropout(x, 0.5)
        sync()
        second = torch.empty(4, device=D).uniform_()
        return first, second, torch.bernoulli(torch.full((9,), 0.5, device=D)), torch.rand(3, device=D)

    check(program, barrier)


def test_a_fallback_is_counted_and_listed() -> None:
    x = data(D, 4)
    before = torchport.executed_fallback_ops()
    x.sin()
    x.sin_()
    x.cumsum(0)
    x * 2
    assert counter("aten::sin") >= 1
    assert counter("aten::cumsum") == 1
    assert counter("lazy::mul") >= 1
    assert counter("aten::mul") == 0
    listed = {name: n - before.get(name, 0) for name, n in torchport.executed_fallback_ops().items()}
    assert sum(n for name, n in listed.items() if name.startswith("aten::sin")) == 2
    assert listed["aten::cumsum"] == 1
    assert not any(n for name, n in listed.items() if name.startswith("aten::mul"))
    assert "cumsum" in metrics.report()


def test_a_fallback_that_repeats_compiles_nothing_new() -> None:
    x = data(D, 4)

    def step() -> None:
        nonlocal x
        x = (x * 2).sin() * 0.5
        torchport.sync()

    for _ in range(2):
        step()
    with no_compile():
        for _ in range(3):
            step()


def test_the_report_names_the_operator_and_the_line() -> None:
    data(D, 4).cumsum(0)
    text = str(torchport.explain())
    assert "cumsum" in text
    assert Path(__file__).name in text
    assert "left out on purpose" in text


def test_strict_mode_raises_and_names_the_line() -> None:
    x = data(D, 4)
    with torchport.set_strict(fallback=True), pytest.raises(StrictModeError) as caught:
        x.cumsum(0)
    assert "cumsum" in str(caught.value)
    assert Path(__file__).name in str(caught.value)
    assert "left out on purpose" in str(caught.value)
    with counted("aten::cumsum") as fallbacks:
        x.cumsum(0)
    assert fallbacks == [1], "outside of the block it falls back again"


def test_strict_mode_leaves_the_target_of_a_write_as_it_was() -> None:
    x = data(D, 4)
    with torchport.set_strict(fallback=True), pytest.raises(StrictModeError):
        x.sin_()
    compare(data("cpu", 4), x)


def test_strict_mode_allows_what_the_backend_has() -> None:
    with torchport.set_strict(fallback=True):
        assert (data(D, 4) * 2).cpu().shape == (4,)


def test_strict_mode_can_be_set_for_good() -> None:
    torchport.set_strict(fallback=True)
    try:
        with pytest.raises(StrictModeError):
            data(D, 4).cumsum(0)
    finally:
        torchport.set_strict(fallback=False)
    data(D, 4).cumsum(0)


def test_an_operator_that_nobody_has_says_so() -> None:
    library = torch.library.Library("port_cases", "DEF")
    library.define("nobody_has_it(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="nobody_has_it"):
        torch.ops.port_cases.nobody_has_it(data(D, 3))
    library._destroy()


def test_a_custom_operator_with_a_cpu_kernel_only_runs() -> None:
    library = torch.library.Library("port_cases", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    try:
        y = torch.ops.port_cases.twice(data(D, 3)) * 1
        assert y.device.type == torch.device(D).type
        torch.testing.assert_close(y.cpu(), data("cpu", 3) * 2)
    finally:
        library._destroy()


def test_a_custom_operator_that_writes_runs_with_its_write() -> None:
    library = torch.library.Library("port_cases", "DEF")
    library.define("bump_(Tensor(a!) x, float by) -> ()")

    def bump(x: torch.Tensor, by: float) -> None:
        x.add_(by)

    library.impl("bump_", bump, "CPU")
    try:
        x = data(D, 4)
        torch.ops.port_cases.bump_(x[1:3], 2.0)
        wanted = data("cpu", 4)
        wanted[1:3] += 2
        torch.testing.assert_close(x.cpu(), wanted)
    finally:
        library._destroy()
