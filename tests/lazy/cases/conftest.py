"""Shared by the cases from the field: the barrier that a test is run with."""

from __future__ import annotations

import pytest

from lazy.cases.oracle import BARRIERS


@pytest.fixture(params=BARRIERS)
def barrier(request: pytest.FixtureRequest) -> str:
    """Where the program meets a barrier."""
    return str(request.param)
