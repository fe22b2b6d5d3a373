"""A few hundred random programs; ``run.py`` beside this file tries any number."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from programs.generator import programs, written
from programs.program import Program, as_test
from programs.reduction import failure_of, reduced
from programs.run import Drawn

BATCHES = 8
IN_A_BATCH = 50


def assert_equal(program: Program) -> None:
    kind = failure_of(program)
    assert not kind, f"{kind}\n{as_test(reduced(program))}"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs_leave_on_the_device_what_they_leave_on_the_cpu(batch: int) -> None:
    for i in range(IN_A_BATCH):
        assert_equal(written(Drawn(f"ci:{batch}:{i}")))


@given(programs())
@settings(max_examples=60)
def test_programs_that_hypothesis_draws_and_shrinks(program: Program) -> None:
    assert_equal(program)


def test_most_statements_are_accepted_by_eager_and_every_kind_is_drawn() -> None:
    statements = [s for i in range(150) for s in written(Drawn(f"kinds:{i}")).walk()]
    assert sum(bool(s.refused) for s in statements) < 0.15 * len(statements)
    families = {s.family for s in statements}
    assert {"factory", "view", "out=", "index", "random", "autograd", "host", "metadata"} <= families
