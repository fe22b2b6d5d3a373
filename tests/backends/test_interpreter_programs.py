"""Graphs run through the interpreter: the same values and layouts as eager, memory of its own for each result."""

from __future__ import annotations

import weakref

import pytest
import torch
from interpreter_graphs import CPU0, N, Traced, aten, storage

from torchport.backend import BackendData, Computation
from torchport.backends.interpreter import InterpreterBackend, program
from torchport.backends.interpreter.bindings import fastest
from torchport.ir.builder import IrBuilder
from torchport.ir.graph import Graph
from torchport.ir.shape import Shape


def test_a_graph_gives_what_eager_gives() -> None:
    x, w, b = torch.randn(5, 3), torch.randn(4, 3), torch.randn(4)
    t = Traced()
    px, pw, pb = t.parameter(x), t.parameter(w), t.parameter(b)
    hidden = t.call(aten.addmm.default, pb, px, t.call(aten.t.default, pw))
    active = t.call(aten.relu.default, hidden)
    out = t.call(aten._log_softmax.default, active, 1, False)
    loss = t.call(aten.mean.default, out)
    got = t.run(out, loss)
    expected = torch.log_softmax(torch.relu(torch.addmm(b, x, w.t())), 1)
    assert torch.equal(expected, got[0])
    assert torch.equal(expected.mean(), got[1])


def test_several_outputs_lists_and_outputs_that_are_no_tensor() -> None:
    x = torch.randn(4, 6)
    t = Traced()
    p = t.parameter(x)
    parts = t.call(aten.split.Tensor, p, 2, 1)
    top, index = t.call(aten.topk.default, p, 2)
    norm = t.call(aten.native_layer_norm.default, p, (6,), None, None, 1e-5)
    both = t.call(aten.cat.default, [parts[2], parts[0]], 1)
    grads = t.call(
        aten.native_layer_norm_backward.default, p, p, (6,), norm[1], norm[2], None, None, [True, False, False]
    )
    assert grads[1].node.outputs[1:] == (None, None)
    got = t.run(both, index, top, norm[1], grads[0])
    assert torch.equal(torch.cat([x[:, 4:], x[:, :2]], 1), got[0])
    assert torch.equal(x.topk(2).indices, got[1])
    assert torch.equal(x.topk(2).values, got[2])
    mean, rstd = torch.native_layer_norm(x, (6,), None, None, 1e-5)[1:]
    assert torch.equal(mean, got[3])
    args = (x, x, (6,), mean, rstd, None, None, [True, False, False])
    assert torch.equal(aten.native_layer_norm_backward(*args)[0], got[4])


def test_numbers_are_inputs_and_keep_their_type() -> None:
    x = torch.arange(4)
    t = Traced()
    p = t.parameter(x)
    a = t.call(aten.mul.Tensor, p, N(2))
    b = t.call(aten.mul.Tensor, p, N(2.0))
    c = t.call(aten.where.self, t.call(aten.gt.Scalar, p, N(1)), a, t.call(aten.full.default, (4,), N(7)))
    d = t.add(IrBuilder().make_scalar(3.5, torch.float64))
    got = t.run(a, b, c, d)
    assert [torch.int64, torch.float32, torch.int64, torch.float64] == [g.dtype for g in got]
    assert torch.equal(torch.where(x > 1, x * 2, 7), got[2])
    assert 3.5 == got[3].item()
    compiled = t.compile(a)
    again = [*t.arguments, *[t.backend.make_computation_data_from_scalar(n, CPU0) for n in (5, 2.0, 1, 7, 3.5)]]
    (data,) = t.backend.execute_computation(compiled, again, CPU0)
    assert torch.equal(x * 5, data.handle)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_is_not_rounded_where_the_product_could_be_made_in_place(dtype: torch.dtype) -> None:
    x = torch.randn(100).to(dtype)
    t = Traced()
    many_made = t.call(aten._foreach_mul.Scalar, [t.call(aten.neg.default, t.parameter(x))], N(1.1283791670955126))
    [many] = t.run(many_made)
    [one] = t.run(t.call(aten.mul.Scalar, t.call(aten.neg.default, t.parameter(x)), N(1.1283791670955126)))
    assert torch.equal(-x * 1.1283791670955126, one)
    assert torch.equal(one, many)


def test_a_number_where_the_operator_wants_a_tensor() -> None:
    x = torch.randn(3)
    t = Traced()
    p = t.parameter(x)
    mask = t.call(aten.gt.Scalar, p, 0)
    out = t.call(aten.where.self, mask, p, N(2.0), outputs=(Shape(torch.float32, (3,)),))
    assert torch.equal(torch.where(x > 0, x, 2.0), t.run(out)[0])


def test_factories_take_the_dtype_of_the_trace() -> None:
    t = Traced()
    full, zeros, steps = (
        t.call(aten.full.default, (2,), 1.5),
        t.call(aten.zeros.default, (2,)),
        t.call(aten.arange.start_step, 0, 4, 2),
    )
    compiled = t.compile(full, zeros, steps)
    torch.set_default_dtype(torch.float64)
    try:
        got = t.execute(compiled)
    finally:
        torch.set_default_dtype(torch.float32)
    assert [torch.float32, torch.float32, torch.int64] == [g.handle.dtype for g in got]
    assert [0, 2] == got[2].handle.tolist()


def test_settings_of_the_caller_do_not_reach_the_program() -> None:
    x = torch.randn(2, 2)
    t = Traced()
    p = t.parameter(x)
    compiled = t.compile(t.call(aten.mm.default, p, p))
    with torch.inference_mode(False), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        (data,) = t.execute(compiled)
    assert torch.float32 is data.handle.dtype
    assert "cpu" == data.handle.device.type
    assert not data.handle.requires_grad
    assert not data.handle.is_inference()


def test_views_copy_nothing() -> None:
    x = torch.randn(4, 6)
    t = Traced()
    p = t.parameter(x)
    seen = []
    node = t.call(aten.permute.default, t.call(aten.slice.Tensor, p, 0, 1, 3), (1, 0))
    for op, args in ((aten.expand.default, ((2, 6, 2),)), (aten.unsqueeze.default, (0,)), (aten.detach.default, ())):
        node = t.call(op, node, *args)
    out = t.call(aten.neg.default, node)
    compiled = t.compile(out)
    source = compiled.source
    step = next(s for s in compiled._values.steps if s is not None and s.name == "neg")
    original = step.function

    def spy(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.untyped_storage().data_ptr())
        return original(x)

    for chunk in compiled.program.chunks:
        cells = dict(zip(chunk.__code__.co_freevars, chunk.__closure__ or (), strict=True))
        cells["neg"].cell_contents = spy
    (data,) = t.execute(compiled)
    assert [storage(t.arguments[0])] == seen
    assert torch.equal(-x[1:3].t().expand(2, 6, 2).unsqueeze(0), data.handle)
    assert "detach" not in source


def test_a_view_that_the_strides_forbid_becomes_a_reshape() -> None:
    x = torch.randn(3, 4)
    t = Traced()
    p = t.parameter(x)
    turned = t.call(aten.t.default, p)
    out = t.call(aten.view.default, turned, (12,), outputs=(Shape(torch.float32, (12,)),))
    other = t.call(aten._unsafe_view.default, turned, (2, 6), outputs=(Shape(torch.float32, (2, 6)),))
    got = t.run(out, other)
    assert torch.equal(x.t().reshape(12), got[0])
    assert torch.equal(x.t().reshape(2, 6), got[1])


def test_as_strided_reads_the_layout_that_was_traced() -> None:
    t = Traced()
    x = torch.arange(12.0).reshape(3, 4)
    turned = t.parameter(x.t())
    # The trace believes that the sum is row-major; the kernel keeps the operand's layout.
    total = t.call(aten.add.Tensor, turned, turned, outputs=(Shape(torch.float32, (4, 3)),))
    out = t.call(aten.as_strided.default, total, (2, 2), (3, 1), 1)
    base = t.call(aten.slice.Tensor, turned, 0, 1, 3)
    part = t.call(aten.as_strided.default, base, (2,), (1,))
    row = t.parameter(torch.tensor([-1.0, -2.0]))
    written = t.call(aten.as_strided_scatter.default, total, row, (2,), (1,), 4)
    got = t.run(out, part, written)
    expected = (x.t() * 2).contiguous()
    assert torch.equal(expected.as_strided((2, 2), (3, 1), 1), got[0])
    assert torch.equal(x.t()[1:3, 0], got[1])
    assert torch.equal(expected.as_strided_scatter(row_of(row), (2,), (1,), 4), got[2])


def row_of(value: object) -> torch.Tensor:
    return value.node.data.handle  # type: ignore[attr-defined,no-any-return]


def test_results_have_the_promised_layout_and_true_sizes() -> None:
    x = torch.randn(3, 4)
    t = Traced()
    p = t.parameter(x)
    promised = Shape(torch.float32, (3, 4), (1, 3))
    (data,) = t.execute(t.compile(t.call(aten.neg.default, p, outputs=(promised,))))
    assert promised is data.shape
    assert (1, 3) == data.handle.stride()
    assert torch.equal(-x, data.handle)


def test_output_sizes_that_depend_on_values() -> None:
    x = torch.tensor([0.0, 1.0, 0.0, 2.0])
    t = Traced()
    p = t.parameter(x)
    where = t.call(aten.nonzero.default, p)
    unique = t.call(aten._unique2.default, p)
    doubled = t.call(aten.mul.Tensor, where, 2)
    found = t.execute(t.compile(where, unique[0], doubled))
    assert Shape(torch.int64, (2, 1), found[0].handle.stride()) is found[0].shape
    assert torch.equal(x.nonzero(), found[0].handle)
    assert torch.equal(x.unique(), found[1].handle)
    assert torch.equal(x.nonzero() * 2, found[2].handle)


def test_each_result_owns_its_memory() -> None:
    t = Traced()
    p = t.parameter(torch.randn(4, 4))
    fresh = t.call(aten.exp.default, p)
    turned = t.call(aten.t.default, fresh)
    part = t.call(aten.slice.Tensor, fresh, 0, 0, 1)
    view = t.call(aten.t.default, p)
    copy = t.call(aten.clone.default, p)
    alone = t.call(aten.t.default, t.call(aten.sin.default, p))
    row = t.call(aten.select.int, t.call(aten.cos.default, p), 0, 0)
    found = t.execute(t.compile(fresh, turned, part, view, copy, p, fresh, alone, row))
    owners = [storage(d) for d in found if d is not t.arguments[0]]
    assert len(found) - 1 == len(set(owners))
    assert storage(t.arguments[0]) not in owners
    assert found[5] is t.arguments[0]
    assert torch.equal(found[0].handle.t(), found[1].handle)
    assert 16 == found[8].handle.untyped_storage().nbytes()
    assert (1, 4) == found[7].handle.stride()


def test_intermediates_are_freed_at_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Traced()
    p = t.parameter(torch.randn(8))
    a = t.call(aten.sort.default, p)[0]
    b = t.call(aten.cumsum.default, a, 0)
    c = t.call(aten.flip.default, b, (0,))
    compiled = t.compile(t.call(aten.cumsum.default, c, 0))
    alive: list[weakref.ref[torch.Tensor]] = []
    counts = []
    for chunk in compiled.program.chunks:
        for name, cell in zip(chunk.__code__.co_freevars, chunk.__closure__ or (), strict=True):
            if name in ("sort", "cumsum", "flip"):

                def watch(*args: object, original: object = cell.cell_contents) -> object:
                    counts.append(sum(r() is not None for r in alive))
                    out = original(*args)  # type: ignore[operator]
                    alive.extend(weakref.ref(o) for o in (out if isinstance(out, tuple) else (out,)))
                    return out

                cell.cell_contents = watch
    t.execute(compiled)
    assert [0, 1, 1, 1] == counts


def test_dead_nodes_do_not_run() -> None:
    t = Traced()
    p = t.parameter(torch.randn(2))
    t.call(aten.exp.default, p)
    assert "exp" not in t.compile(t.call(aten.neg.default, p)).source


def test_the_text_is_the_program() -> None:
    t = Traced()
    p = t.parameter(torch.randn(2))
    out = t.call(aten._to_copy.default, t.call(aten.add.Tensor, p, p, alpha=2), dtype=torch.float64)
    compiled = t.compile(out)
    text = t.backend.get_computation_backend_text(compiled)
    assert "v1 = add(p0, p0, alpha=2)" in text
    assert "torch.float64" in text
    plain = Computation("c", compiled.graph, [CPU0])
    assert plain.text == t.backend.get_computation_backend_text(plain)


def test_bindings_are_found_where_dispatch_modes_are_off() -> None:
    x = torch.empty(2, 2, device="meta")
    with torch._C._DisableTorchDispatch():
        assert torch.add is fastest(aten.add.Tensor, (x, x), {})


def test_a_binding_is_used_only_when_it_reaches_the_overload() -> None:
    x = torch.empty(2, device="meta")
    assert torch.where is fastest(aten.where.ScalarOther, (x > 0, x, 2.0), {})
    assert aten.where.self._op is fastest(aten.where.self, (x > 0, x, 2.0), {})
    assert aten.rsub.Scalar._op is not fastest(aten.rsub.Scalar, (x, 2.0), {})


@pytest.mark.slow
def test_two_hundred_thousand_dependent_nodes() -> None:
    t = Traced()
    x = torch.zeros(2)
    p = t.parameter(x)
    first = t.call(aten.add.Tensor, p, 1)
    call = first.node.call
    value = first
    for i in range(200_000):
        value = IrBuilder().make_generic(call, (p if i == 150_000 else value,)).value()
        t.nodes.append(value.node)
    compiled = t.compile(value, first)
    found = t.execute(compiled)
    assert 50_000.0 == found[0].handle[0].item()
    assert 1.0 == found[1].handle[0].item()
    poisoned = BackendData(CPU0, t.arguments[0].shape)
    poisoned.error = RuntimeError("gone")
    assert poisoned.error is t.execute(compiled, arguments=[poisoned])[0].error


def test_values_cross_from_one_function_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "CHUNK_STATEMENTS", 3)
    x = torch.randn(4, 4)
    t = Traced()
    p = t.parameter(x)
    values = [t.call(aten.mul.Tensor, p, N(float(i))) for i in range(10)]
    total = values[0]
    for v in reversed(values):
        total = t.call(aten.sub.Tensor, total, v)
    compiled = t.compile(total, values[4])
    assert len(compiled.program.chunks) > 3
    found = t.execute(compiled)
    expected = x * 0.0
    for i in reversed(range(10)):
        expected = expected - x * float(i)
    assert torch.equal(expected, found[0].handle)
    assert torch.equal(x * 4.0, found[1].handle)


def test_wrong_arguments_are_named() -> None:
    t = Traced()
    p = t.parameter(torch.randn(2))
    compiled = t.compile(t.call(aten.neg.default, p))
    with pytest.raises(ValueError, match="takes 1 arguments \\(p0\\); 0 were given"):
        t.backend.execute_computation(compiled, [], CPU0)
    with pytest.raises(ValueError, match="argument 0 of 'test' has no value"):
        t.execute(compiled, arguments=[BackendData(CPU0, t.arguments[0].shape)])
    with pytest.raises(TypeError, match="not compiled"):
        t.backend.execute_computation(Computation("c", Graph([], []), [CPU0]), [], CPU0)
    with pytest.raises(ValueError, match="compiled for CPU0, not for CPU1"):
        InterpreterBackend().execute_computation(compiled, t.arguments, type(CPU0)(CPU0.type, 1))
