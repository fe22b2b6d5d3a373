"""Errors in a program: what they spoil is marked, everything else is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter_graphs import CPU0, Traced, aten

from torchport.backend import BackendData
from torchport.errors import ExecutionError


def failing(t: Traced) -> tuple[Any, Any, Any, Any]:
    p, index = t.parameter(torch.arange(3.0)), t.parameter(torch.tensor([5]))
    good = t.call(aten.exp.default, p)
    bad = t.call(aten.index_select.default, p, 0, index, line="model.py:41")
    spoilt = t.call(aten.add.Tensor, good, bad)
    late = t.call(aten.neg.default, good)
    return good, bad, spoilt, late


def test_a_failed_node_spoils_only_what_depends_on_it() -> None:
    t = Traced()
    good, bad, spoilt, late = failing(t)
    found = t.execute(t.compile(good, bad, spoilt, late))
    assert torch.equal(torch.arange(3.0).exp(), found[0].handle)
    assert torch.equal(-torch.arange(3.0).exp(), found[3].handle)
    error = found[1].error
    assert isinstance(error, ExecutionError)
    assert error is found[2].error
    assert found[1].handle is None
    assert isinstance(error.__cause__, (RuntimeError, IndexError))
    assert (
        "aten.index_select.default(f32[3], i64[1]), traced at model.py:41, failed: index out of range in self"
        == str(error)
    )
    with pytest.raises(ExecutionError, match=r"model\.py:41"):
        t.backend.make_tensor_from_computation_data(found[2])
    assert 1 == t.backend.get_metrics()["executions_node_by_node"]


def test_an_argument_with_an_error_spoils_what_needs_it() -> None:
    t = Traced()
    p, q = t.parameter(torch.ones(2)), t.parameter(torch.ones(2))
    compiled = t.compile(t.call(aten.neg.default, p), t.call(aten.add.Tensor, p, q), p, q)
    broken = BackendData(CPU0, p.shape)
    broken.error = ExecutionError("it failed before")
    found = t.execute(compiled, arguments=[t.arguments[0], broken])
    assert torch.equal(torch.tensor([-1.0, -1.0]), found[0].handle)
    assert broken.error is found[1].error
    assert found[2] is t.arguments[0]
    assert broken.error is found[3].error


def test_an_interrupt_is_not_swallowed_and_restores_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Traced()
    compiled = t.compile(t.call(aten.rand.default, (3,)), t.call(aten.exp.default, t.parameter(torch.ones(1))))
    (chunk,) = compiled.program.chunks
    cells = dict(zip(chunk.__code__.co_freevars, chunk.__closure__ or (), strict=True))

    def interrupted(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    cells["exp"].cell_contents = interrupted
    state = t.backend.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        t.execute(compiled)
    assert torch.equal(state, t.backend.get_rng_state())


def test_a_result_that_is_no_tensor_is_refused() -> None:
    t = Traced()
    p = t.parameter(torch.ones(2, 3))
    args = (p, p, (3,), p, p, None, None, [True, False, False])
    grads = t.call(aten.native_layer_norm_backward.default, *args, outputs=(p.shape, p.shape, p.shape))
    found = t.execute(t.compile(grads[1]))
    assert "returned no tensor" in str(found[0].error)
