"""skorch, Ignite and torchmetrics give on the device what they give on the CPU."""

from __future__ import annotations

import pytest

from integrations.check import Check, run
from integrations.other_trainers import CHECKS

# torchmetrics tells what each of two metrics will need on a large data set.
pytestmark = pytest.mark.filterwarnings("ignore:Metric `.*` will save all targets and predictions:UserWarning")


@pytest.mark.parametrize("check", CHECKS, ids=[c.program.__name__ for c in CHECKS])
def test_the_program_gives_what_it_gives_on_the_cpu(check: Check) -> None:
    outcome = run(check)
    assert {} == outcome.fallbacks
