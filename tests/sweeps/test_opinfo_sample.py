"""A choice of operators in each run of the tests: the same ones forward and backward, and a few of every other sweep.

The whole is ``tests/sweeps/opinfo.py``.

Here in one process: forking from a test process that has threads would hang now and then.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sweeps.child import full_name, run_op
from sweeps.expected import FAILURES, FALLBACKS, LAYOUTS, judge
from sweeps.records import OpResult, SampleRecord
from sweeps.sweep import EVERYTHING, Sweep, sampled_operators, stratified_operators

OPERATORS = 60
SAMPLES = 2
OF_EACH_SWEEP = 2

FORWARD, BACKWARD = Sweep("fwd", "float32"), Sweep("bwd", "float32")
CHOSEN = sampled_operators(OPERATORS)
STRATA = [Sweep(mode, dtype) for mode, dtypes in EVERYTHING.items() for dtype in dtypes]


def result_of(op: Any, sweep: Sweep) -> OpResult:
    dtype = sweep.dtype_for(op)
    assert dtype is not None
    records: list[SampleRecord] = []
    with torch.random.fork_rng(devices=[]):
        run_op(op, sweep.mode, dtype, SAMPLES, lambda index: None, records.append)
    return OpResult(full_name(op), sweep.mode, str(dtype).removeprefix("torch."), records)


def check(op: Any, sweep: Sweep) -> None:
    """The operator does what is expected of it, without a fallback and in eager's layout."""
    result = result_of(op, sweep)
    verdict = judge([result])
    assert () == verdict.unexpected
    assert () == verdict.needless, "take it out of tests/sweeps/expected.py"


@pytest.mark.parametrize("op", CHOSEN, ids=full_name)
def test_an_operator_gives_what_the_cpu_gives(op: Any) -> None:
    check(op, FORWARD)


@pytest.mark.parametrize("op", [op for op in CHOSEN if BACKWARD.dtype_for(op)], ids=full_name)
def test_a_gradient_is_what_the_cpu_gives(op: Any) -> None:
    check(op, BACKWARD)


@pytest.mark.parametrize("sweep", STRATA, ids=lambda s: f"{s.mode}-{s.dtype}")
def test_a_few_operators_of_each_sweep(sweep: Sweep) -> None:
    for op in stratified_operators(sweep, OF_EACH_SWEEP):
        check(op, sweep)


def test_the_choice_is_the_same_everywhere() -> None:
    assert [full_name(op) for op in CHOSEN] == [full_name(op) for op in sampled_operators(OPERATORS)]
    assert "fft.hfft2" == full_name(CHOSEN[0])


def test_everything_that_is_expected_names_an_operator_and_a_reason() -> None:
    names = {full_name(op) for op in sampled_operators(10_000)}
    expected = (*FAILURES, *FALLBACKS, *LAYOUTS)
    assert {e.op for e in expected} <= names
    assert all(e.reason for e in expected)
