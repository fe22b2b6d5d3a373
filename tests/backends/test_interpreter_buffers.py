"""Writing in place: only where nobody can see it, and into parameters only when nothing can fail afterwards."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
from interpreter_graphs import CPU0, N, Traced, aten, storage

from torchport.backend import BackendData
from torchport.backends.interpreter import InterpretedComputation
from torchport.backends.interpreter.memory import _FIRST_BOUND, HELD
from torchport.ir.shape import Shape

NINE = Shape(torch.float32, (3, 3))


def in_place_names(computation: InterpretedComputation) -> list[str]:
    nodes = computation.graph.nodes
    return [nodes[i].call.name for i in sorted(computation.program.schedule.in_place)]


def test_a_dying_fresh_intermediate_is_written_over() -> None:
    x = torch.randn(4, 4)
    t = Traced()
    p = t.parameter(x)
    product = t.call(aten.mm.default, p, p)
    out = t.call(aten.mul.Tensor, t.call(aten.relu.default, t.call(aten.add.Tensor, product, p)), N(2.0))
    compiled = t.compile(out)
    assert ["aten.add.Tensor", "aten.relu.default", "aten.mul.Tensor"] == in_place_names(compiled)
    (data,) = t.execute(compiled)
    assert torch.equal(torch.relu(x @ x + x) * 2.0, data.handle)
    assert torch.equal(x, t.arguments[0].handle)


def test_power_clamp_and_fill_have_their_twins() -> None:
    x = torch.rand(5)
    t = Traced()
    p = t.parameter(x)
    a = t.call(aten.pow.Tensor_Scalar, t.call(aten.exp.default, p), 2.5)
    b = t.call(aten.clamp.default, a, N(1.5), N(3.0))
    c = t.call(aten.lerp.Scalar, b, p, N(0.25))
    compiled = t.compile(t.call(aten.addcdiv.default, c, p, p, value=0.5))
    assert 4 == len(in_place_names(compiled))
    (data,) = t.execute(compiled)
    expected = torch.addcdiv(torch.lerp(x.exp().pow(2.5).clamp(1.5, 3.0), x, 0.25), x, x, value=0.5)
    assert torch.equal(expected, data.handle)


def case_parameter(t: Traced, p: Any) -> tuple[Any, ...]:
    return (t.call(aten.relu.default, p),)


def case_view_of_a_parameter(t: Traced, p: Any) -> tuple[Any, ...]:
    return (t.call(aten.relu.default, t.call(aten.t.default, p)),)


def case_result(t: Traced, p: Any) -> tuple[Any, ...]:
    a = t.call(aten.sin.default, p)
    return (a, t.call(aten.relu.default, a))


def case_view_is_a_result(t: Traced, p: Any) -> tuple[Any, ...]:
    a = t.call(aten.sin.default, p)
    return (t.call(aten.t.default, a), t.call(aten.relu.default, a))


def case_read_later(t: Traced, p: Any) -> tuple[Any, ...]:
    a = t.call(aten.sin.default, p)
    b = t.call(aten.relu.default, a)
    return (t.call(aten.mm.default, a, b),)


def case_read_later_through_a_view(t: Traced, p: Any) -> tuple[Any, ...]:
    a = t.call(aten.sin.default, p)
    view = t.call(aten.t.default, a)
    b = t.call(aten.relu.default, a)
    return (t.call(aten.mm.default, view, b),)


def case_read_later_through_a_reshape(t: Traced, p: Any) -> tuple[Any, ...]:
    a = t.call(aten.sin.default, p)
    flat = t.call(aten.reshape.default, a, (16,))
    b = t.call(aten.relu.default, a)
    return (t.call(aten.cat.default, [flat, t.call(aten.view.default, b, (16,))]),)


def case_the_other_operand_is_a_view_of_it(t: Traced, p: Any) -> tuple[Any, ...]:
    a = t.call(aten.sin.default, p)
    return (t.call(aten.add.Tensor, a, t.call(aten.t.default, a)),)


def case_broadcast(t: Traced, p: Any) -> tuple[Any, ...]:
    a = t.call(aten.sum.dim_IntList, p, (0,))
    return (t.call(aten.add.Tensor, a, p),)


def case_promotion(t: Traced, p: Any) -> tuple[Any, ...]:
    a = t.call(aten.sum.default, p)
    return (t.call(aten.add.Tensor, a, t.call(aten._to_copy.default, p, dtype=torch.float64)),)


def case_bool_to_float(t: Traced, p: Any) -> tuple[Any, ...]:
    a = t.call(aten.gt.Scalar, p, 0)
    return (t.call(aten.mul.Tensor, a, p),)


def case_expanded(t: Traced, p: Any) -> tuple[Any, ...]:
    row = t.call(aten.expand.default, t.call(aten.sum.dim_IntList, p, (0,)), (4, 4))
    return (t.call(aten.add.Tensor, row, p),)


def case_overlapping_windows(t: Traced, p: Any) -> tuple[Any, ...]:
    # Elements share places, though the trace says that the windows are row-major.
    windows = t.call(aten.as_strided.default, t.call(aten.sin.default, p), (3, 3), (1, 1), 0, outputs=(NINE,))
    return (t.call(aten.relu.default, windows),)


def case_a_copy_that_is_elided(t: Traced, p: Any) -> tuple[Any, ...]:
    return (t.call(aten.relu.default, t.call(aten.clone.default, p)),)


@pytest.mark.parametrize(
    "case", [f for n, f in sorted(globals().items()) if n.startswith("case_")], ids=lambda f: f.__name__[5:]
)
def test_what_is_seen_elsewhere_is_not_written_over(case: Any) -> None:
    x = torch.randn(4, 4)
    t = Traced()
    results = case(t, t.parameter(x))
    compiled = t.compile(*results)
    assert [] == in_place_names(compiled)
    found = t.execute(compiled)
    other = [d.handle for d in t.backend.execute_computation(compiled, t.arguments, CPU0)]
    assert torch.equal(x, t.arguments[0].handle)
    assert 0 == t.backend.get_metrics()["executions_node_by_node"]
    for a, b in zip(found, other, strict=True):
        assert torch.equal(a.handle, b)


def sgd(t: Traced, x: torch.Tensor, g: torch.Tensor) -> Any:
    p, grad = t.parameter(x), t.parameter(g)
    return t.call(aten.add.Tensor, p, t.call(aten.mul.Tensor, grad, N(-0.1)))


def test_a_donated_parameter_is_updated_in_its_own_buffer() -> None:
    x, g = torch.randn(3), torch.randn(3)
    t = Traced()
    compiled = t.compile(sgd(t, x, g), aliases={0: 0})
    owner = storage(t.arguments[0])
    (plain,) = t.execute(compiled)
    assert owner != storage(plain)
    assert torch.equal(x, t.arguments[0].handle)
    (data,) = t.execute(compiled, donate=[0])
    assert owner == storage(data)
    assert not t.arguments[0].has_value
    assert torch.equal(x + g * -0.1, data.handle)
    assert torch.equal(plain.handle, data.handle)
    assert 1 == t.backend.get_metrics()["donated_buffers"]


def adam(t: Traced, x: torch.Tensor) -> tuple[Any, Any, Any]:
    p, avg, sq, g = (t.parameter(v) for v in (x, x * 0.1, x.abs(), x + 1))
    avg = t.call(aten.lerp.Scalar, avg, g, N(0.1))
    sq = t.call(aten.addcmul.default, t.call(aten.mul.Tensor, sq, N(0.999)), g, g, value=0.001)
    denominator = t.call(aten.add.Tensor, t.call(aten.div.Tensor, t.call(aten.sqrt.default, sq), N(0.5)), 1e-8)
    return t.call(aten.addcdiv.default, p, avg, denominator, value=-0.01), avg, sq


def eager_adam(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    avg, sq, g = torch.lerp(x * 0.1, x + 1, 0.1), x.abs(), x + 1
    sq = torch.addcmul(sq * 0.999, g, g, value=0.001)
    return torch.addcdiv(x, avg, sq.sqrt() / 0.5 + 1e-8, value=-0.01), avg, sq


def test_adam_writes_what_nothing_allocates_after() -> None:
    x = torch.randn(6)
    t = Traced()
    compiled = t.compile(*adam(t, x), aliases={0: 0, 1: 1, 2: 2})
    assert compiled.donating_program is not None
    # exp_avg_sq is read by the denominator, which needs memory: it is not written in place.
    assert {0: 0, 1: 1} == dict(compiled.donating_program.schedule.donated)
    old = list(t.arguments)
    owners = [storage(d) for d in old]
    found = t.execute(compiled, donate=[0, 1, 2])
    for expected, data in zip(eager_adam(x), found, strict=True):
        assert torch.equal(expected, data.handle)
    assert owners[:2] == [storage(d) for d in found[:2]]
    assert storage(found[2]) not in owners
    assert [False, False, True] == [d.has_value for d in old[:3]]


def foreach_adam(t: Traced, xs: list[torch.Tensor]) -> list[Any]:
    inputs = [(x, x * 0.1, x.abs(), x + 1) for x in xs]
    ps, avgs, sqs, gs = ([t.parameter(v) for v in vs] for vs in zip(*inputs, strict=True))
    avgs = t.call(aten._foreach_lerp.Scalar, avgs, gs, N(0.1))
    sqs = t.call(aten._foreach_addcmul.Scalar, t.call(aten._foreach_mul.Scalar, sqs, N(0.999)), gs, gs, N(0.001))
    denominators = t.call(aten._foreach_div.Scalar, t.call(aten._foreach_sqrt.default, sqs), N(0.5))
    denominators = t.call(aten._foreach_add.Scalar, denominators, 1e-8)
    return [*t.call(aten._foreach_addcdiv.Scalar, ps, avgs, denominators, N(-0.01)), *avgs, *sqs]


def test_lists_of_parameters_are_updated_in_their_own_buffers() -> None:
    xs = [torch.randn(6), torch.randn(2, 3), torch.randn(4)]
    t = Traced()
    compiled = t.compile(*foreach_adam(t, xs), aliases={i: i for i in range(9)})
    assert compiled.donating_program is not None
    assert {i: i for i in range(6)} == dict(compiled.donating_program.schedule.donated)
    # The squares: a fresh product is written over; so are the roots.
    assert 3 == len(compiled.program.schedule.in_place)
    plain = t.execute(compiled)
    owners = [storage(d) for d in t.arguments]
    found = t.execute(compiled, donate=range(9))
    expected = [v for vs in zip(*map(eager_adam, xs), strict=True) for v in vs]
    for want, first, second in zip(expected, plain, found, strict=True):
        assert torch.equal(want, first.handle)
        assert torch.equal(want, second.handle)
    assert owners[:6] == [storage(d) for d in found[:6]]
    assert not {storage(d) for d in found[6:]} & set(owners)


def test_a_list_is_donated_as_a_whole_or_not() -> None:
    t = Traced()
    a, b, g = (t.parameter(torch.randn(3)) for _ in range(3))
    both = t.call(aten._foreach_add.List, [a, b], [g, g])
    assert t.compile(*both, aliases={0: 0}).donating_program is None
    assert t.compile(*both, aliases={0: 1, 1: 0}).donating_program is None
    assert t.compile(*both, aliases={0: 0, 1: 1}).donating_program is not None


def test_a_chain_of_updates_runs_in_one_buffer() -> None:
    x, g = torch.randn(3), torch.randn(3)
    t = Traced()
    p, grad = t.parameter(x), t.parameter(g)
    out = t.call(aten.addcmul.default, t.call(aten.mul.Tensor, p, N(0.9)), grad, grad)
    compiled = t.compile(out, aliases={0: 0})
    owner = storage(t.arguments[0])
    (data,) = t.execute(compiled, donate=[0])
    assert owner == storage(data)
    assert torch.equal(torch.addcmul(x * 0.9, g, g), data.handle)


def test_readers_of_the_old_value_run_before_it_is_overwritten() -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    t = Traced()
    p, q = t.parameter(x), t.parameter(y)
    view = t.call(aten.t.default, p)
    new_p = t.call(aten.add.Tensor, p, N(1.0))
    new_q = t.call(aten.add.Tensor, q, view)
    late = t.call(aten.mm.default, view, q)
    snapshot = t.call(aten.clone.default, p)
    compiled = t.compile(new_p, new_q, late, snapshot, aliases={0: 0, 1: 1})
    assert compiled.donating_program is not None
    assert 2 == len(compiled.donating_program.schedule.donated)
    found = t.execute(compiled, donate=[0, 1])
    for expected, data in zip((x + 1.0, y + x.t(), x.t() @ y, x), found, strict=True):
        assert torch.equal(expected, data.handle)


def test_updates_that_read_each_others_old_values_cannot_both_be_in_place() -> None:
    x, y = torch.randn(3), torch.randn(3)
    t = Traced()
    p, q = t.parameter(x), t.parameter(y)
    compiled = t.compile(t.call(aten.add.Tensor, p, q), t.call(aten.add.Tensor, q, p), aliases={0: 0, 1: 1})
    assert compiled.donating_program is not None
    assert 1 == len(compiled.donating_program.schedule.donated)
    found = t.execute(compiled, donate=[0, 1])
    assert torch.equal(x + y, found[0].handle)
    assert torch.equal(x + y, found[1].handle)


@pytest.mark.parametrize("why", ["other dtype", "broadcast", "twice", "returned", "integer", "not the operand", "view"])
def test_what_is_not_safe_is_not_donated(why: str) -> None:
    t = Traced()
    x = torch.arange(4) if why == "integer" else torch.randn(4)
    p = t.parameter(x)
    other = t.parameter(torch.ones(4, dtype=torch.float64) if why == "other dtype" else torch.ones(4, dtype=x.dtype))
    out = t.call(aten.add.Tensor, *((other, p) if why == "not the operand" else (p, other)))
    results = [out]
    if why == "broadcast":
        results = [t.call(aten.add.Tensor, p, t.call(aten.expand.default, other, (2, 4)))]
    if why == "twice":
        results = [out, out]
    if why == "returned":
        results = [out, p]
    if why == "view":
        results = [out, t.call(aten.view.default, out, (2, 2))]
    compiled = t.compile(*results, aliases={0: 0})
    assert compiled.donating_program is None
    found = t.execute(compiled, donate=[0])
    assert torch.equal(x, t.arguments[0].handle)
    assert all(d.error is None for d in found)


def test_one_buffer_given_twice_is_not_overwritten() -> None:
    t = Traced()
    compiled = t.compile(sgd(t, torch.randn(3), torch.randn(3)), aliases={0: 0})
    data = t.arguments[0]
    before = data.handle.clone()
    (found,) = t.execute(compiled, donate=[0], arguments=[data, data])
    assert torch.equal(before, data.handle)
    assert torch.equal(before + before * -0.1, found.handle)


def test_an_error_leaves_donated_parameters_with_their_values() -> None:
    x = torch.randn(3)
    t = Traced()
    p, grad = t.parameter(x), t.parameter(torch.randn(3))
    new = t.call(aten.add.Tensor, p, t.call(aten.mul.Tensor, grad, N(-0.1)))
    index = t.parameter(torch.tensor([7]))
    bad = t.call(aten.index_select.default, grad, 0, index, outputs=(grad.shape,))
    compiled = t.compile(new, bad, aliases={0: 0})
    assert compiled.donating_program is not None
    found = t.execute(compiled, donate=[0])
    assert torch.equal(x, t.arguments[0].handle)
    assert storage(found[0]) != storage(t.arguments[0])
    assert torch.equal(x + t.arguments[1].handle * -0.1, found[0].handle)
    assert found[1].error is not None


def test_out_of_memory_leaves_parameters_with_their_values() -> None:
    x = torch.randn(2)
    t = Traced()
    p = t.parameter(x)
    new = t.call(aten.add.Tensor, p, N(1.0))
    huge = t.call(aten.full.default, (1 << 50,), 1.0)
    total = t.call(aten.sum.default, huge)
    found = t.execute(t.compile(new, total, aliases={0: 0}), donate=[0])
    assert torch.equal(x, t.arguments[0].handle)
    assert "can't allocate memory" in str(found[1].error)


def test_an_interrupt_waits_for_the_updates_and_loses_no_result() -> None:
    x, g = torch.randn(3), torch.randn(3)
    t = Traced()
    compiled = t.compile(sgd(t, x, g), aliases={0: 0})
    assert compiled.donating_program is not None
    (chunk,) = compiled.donating_program.final
    cells = dict(zip(chunk.__code__.co_freevars, chunk.__closure__ or (), strict=True))
    original = cells["add_"].cell_contents

    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return original(*args)

    cells["add_"].cell_contents = interrupted
    with pytest.raises(KeyboardInterrupt):
        t.execute(compiled, donate=[0])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not t.arguments[0].has_value
    # The runtime runs an interrupted execution again; the update must not be lost, nor done twice.
    (data,) = t.execute(compiled, donate=[0])
    assert torch.equal(x + g * -0.1, data.handle)
    with pytest.raises(ValueError, match="a donated argument has lost its value"):
        t.execute(compiled, donate=[0])


def test_bytes_held_fall_when_data_goes() -> None:
    t = Traced()
    before = t.backend.get_metrics()["bytes_held"]
    shape = t.parameter(torch.zeros(1 << 20)).shape
    held: list[BackendData] = [t.backend.make_computation_data_from_tensor(torch.zeros(1 << 20), shape, CPU0)]
    assert 8 << 20 == t.backend.get_metrics()["bytes_held"] - before
    held.clear()
    assert 4 << 20 == t.backend.get_metrics()["bytes_held"] - before


def test_notes_of_what_data_held_do_not_pile_up() -> None:
    t = Traced()
    x = torch.zeros(4)
    shape = t.parameter(x).shape
    kept = [t.backend.make_computation_data_from_tensor(x, shape, CPU0) for _ in range(10)]
    for _ in range(3 * _FIRST_BOUND):
        t.backend.make_computation_data_from_tensor(x, shape, CPU0)
    assert len(HELD._references) <= 2 * _FIRST_BOUND
    before = HELD.nbytes()
    kept.clear()
    assert 10 * 16 == before - HELD.nbytes()
