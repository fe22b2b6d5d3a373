"""Random operators draw from the backend's generator, in order, the numbers that eager draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter_graphs import N, Traced, aten

from torchport.backends.interpreter import InterpreterBackend


def test_the_stream_is_that_of_eager() -> None:
    x = torch.rand(40)
    t = Traced()
    t.backend.set_rng_seed(0)
    p = t.parameter(x)
    base = t.call(aten.empty.memory_format, (40,))
    got = t.run(
        t.call(aten.rand.default, (7,)),
        t.call(aten.normal_functional.default, base, 1.0, N(2.0)),
        t.call(aten.bernoulli.p, base, 0.3),
        t.call(aten.uniform.default, p, -1.0, 1.0),
        t.call(aten.randint.low, 2, 9, (5,), dtype=torch.int64),
        t.call(aten.randperm.default, 9),
        t.call(aten.exponential.default, p),
        t.call(aten.bernoulli.default, p),
        t.call(aten.rand_like.default, p),
        t.call(aten.multinomial.default, p, 3),
        t.call(aten.normal.Tensor_float, p),
        t.call(aten.native_dropout.default, p, 0.5, True)[0],
        t.call(aten.randn.default, (3, 3)),
    )
    before = torch.get_rng_state()
    torch.manual_seed(0)
    e = torch.empty(40)
    expected = [
        torch.rand(7),
        e.clone().normal_(1.0, 2.0),
        e.clone().bernoulli_(0.3),
        x.clone().uniform_(-1.0, 1.0),
        torch.randint(2, 9, (5,)),
        torch.randperm(9),
        x.clone().exponential_(),
        torch.bernoulli(x),
        torch.rand_like(x),
        torch.multinomial(x, 3),
        torch.normal(x),
        torch.native_dropout(x, 0.5, True)[0],
        torch.randn(3, 3),
    ]
    torch.set_rng_state(before)
    for want, have in zip(expected, got, strict=True):
        assert torch.equal(want, have)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_dropout_rounds_where_eager_rounds(dtype: torch.dtype) -> None:
    x = torch.rand(500).to(dtype)
    t = Traced()
    t.backend.set_rng_seed(0)
    output, mask = t.call(aten.native_dropout.default, t.parameter(x), 0.1, True)
    got = t.run(output, mask)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = torch.native_dropout(x, 0.1, True)
    for want, have in zip(expected, got, strict=True):
        assert torch.equal(want, have)


def test_torchs_own_generator_is_left_alone() -> None:
    t = Traced()
    p = t.parameter(torch.rand(3, 2, 4, 8))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    # It has no generator argument and no overload with one.
    out = t.call(aten._scaled_dot_product_attention_math.default, p, p, p, None, 0.5)[0]
    draws = [t.run(out, t.call(aten.rand.default, (2,))) for _ in range(2)]
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[1][0])


def test_a_seed_starts_the_stream_again_and_a_state_continues_it() -> None:
    t = Traced()
    compiled = t.compile(t.call(aten.rand.default, (4,)))

    def draw() -> list[float]:
        numbers: list[float] = t.execute(compiled)[0].handle.tolist()
        return numbers

    t.backend.set_rng_seed(3)
    first, state, second = draw(), t.backend.get_rng_state(), draw()
    t.backend.set_rng_state(state)
    assert second == draw()
    t.backend.set_rng_seed(3)
    assert first == draw()
    fresh = InterpreterBackend()
    fresh.set_rng_seed(3)
    assert torch.equal(fresh.get_rng_state(), torch.Generator().manual_seed(3).get_state())


def test_draws_nobody_reads_advance_the_generator() -> None:
    t = Traced()
    t.backend.set_rng_seed(0)
    t.call(aten.rand.default, (4,))
    (got,) = t.run(t.call(aten.rand.default, (4,)))
    generator = torch.Generator().manual_seed(0)
    torch.rand(4, generator=generator)
    assert torch.equal(torch.rand(4, generator=generator), got)


def test_a_fill_takes_new_memory_whatever_the_layout_of_what_it_fills() -> None:
    t = Traced()
    p = t.parameter(torch.rand(20))
    fresh = t.call(aten.empty.memory_format, (20,))
    out = t.call(aten.normal_functional.default, fresh)
    compiled = t.compile(out, t.call(aten.normal_functional.default, p))
    assert not compiled.program.schedule.in_place
    (a, b) = t.execute(compiled)
    assert not torch.equal(a.handle, b.handle)
    assert a.handle.untyped_storage().data_ptr() != t.arguments[0].handle.untyped_storage().data_ptr()


@pytest.mark.parametrize("fails", [False, True])
def test_recovery_draws_the_same_numbers(fails: bool) -> None:
    t = Traced()
    t.backend.set_rng_seed(0)
    p = t.parameter(torch.rand(3))
    index = t.parameter(torch.tensor([9 if fails else 1]))
    a: Any = t.call(aten.rand.default, (4,))
    bad = t.call(aten.index_select.default, p, 0, index)
    found = t.execute(t.compile(a, bad, t.call(aten.rand.default, (4,))))
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(torch.rand(4, generator=generator), found[0].handle)
    assert torch.equal(torch.rand(4, generator=generator), found[2].handle)
    assert fails is (found[1].error is not None)
