"""Shared by the cases from the field: the barrier that a test is run with."""

from __future__ import annotations

import pytest
from lazy.cases.oracle import BARRIERS, D


def pytest_configure(config: pytest.Config) -> None:
    """Names the marker of the long runs."""
    config.addinivalue_line("markers", "slow: a long run; deselect with -m 'not slow'")


@pytest.fixture(params=BARRIERS)
def barrier(request: pytest.FixtureRequest) -> str:
    """Where the program meets a barrier."""
    return str(request.param)


# --- remove from here when the device works: counters for validating the programs themselves on the CPU ---
if D == "cpu":
    import types

    import torch

    import torchport

    stub = types.SimpleNamespace(
        counter_value=lambda name: 0, counter_names=list, snapshot=dict, report=str, reset=lambda: None
    )
    for name in ("sync", "mark_step", "wait_device_ops"):
        setattr(torchport, name, lambda wait=False: None)
    torchport.metrics = stub
    torchport.explain = str
    torchport.manual_seed = torch.manual_seed
    torchport.executed_fallback_ops = dict
# --- to here ---
