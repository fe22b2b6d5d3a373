"""Trained models give on the device what they give on the CPU, and what is right."""

from __future__ import annotations

import pytest

from integrations.check import Check, run
from integrations.real_weights import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=[c.program.__name__ for c in CHECKS])
def test_the_program_gives_what_it_gives_on_the_cpu(check: Check) -> None:
    outcome = run(check)
    assert {} == outcome.fallbacks
