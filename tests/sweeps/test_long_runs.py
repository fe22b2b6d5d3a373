"""A short version of every long run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sweeps.long_runs import RUNS, Outcome


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_a_short_run_is_as_wanted(run: Callable[[int], Outcome]) -> None:
    assert not run(60).faults
