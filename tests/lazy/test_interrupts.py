"""Ctrl-C in the middle of a step leaves a usable device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = Path(__file__).parents[1] / "sweeps" / "interrupts.py"


@pytest.mark.subprocess
@pytest.mark.slow
def test_ctrl_c_at_any_line_of_a_step_leaves_a_usable_device() -> None:
    """A few dozen places; the sweep behind it tries all."""
    done = subprocess.run([sys.executable, str(SWEEP), "--every", "503"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "all well" in done.stdout
