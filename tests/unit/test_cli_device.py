"""The demo as a user runs it: on the lazy device, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchport

SOURCE = Path(torchport.__file__).resolve().parents[1]
INTERRUPTED_IN_STEP_20 = """
import os, signal, sys
from torchport.cli import digits, main

train = digits.train

def interrupted(device, data, epochs, on_step, on_epoch):
    count = 0

    def step():
        nonlocal count
        count += 1
        if count == 20:
            os.kill(os.getpid(), signal.SIGINT)

    return train(device, data, epochs, step, on_epoch)

digits.train = interrupted
sys.exit(main(["demo", "--out", sys.argv[1]]))
"""

pytestmark = pytest.mark.subprocess


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_the_demo_holds_its_goals_on_the_device(tmp_path: Path) -> None:
    out = tmp_path / "demo.png"
    finished = run_python("-m", "torchport.cli", "demo", "--epochs", "6", "--json", "--out", str(out))
    assert 0 == finished.returncode, finished.stderr
    figures = json.loads(finished.stdout)
    assert [] == figures["missed_goals"]
    assert ("port", "interpreter") == (figures["device"], figures["backend"])
    assert figures["ops_per_step"] > 20
    # The learning rate and the step count change in every step: were they part of the graph, each would be compiled.
    assert 0 == sum(figures["compiles_per_epoch"][2:])
    assert out.stat().st_size > 10_000


def test_the_demo_ends_with_the_metrics_report(tmp_path: Path) -> None:
    finished = run_python("-m", "torchport.cli", "demo", "--epochs", "4", "--out", str(tmp_path / "demo.png"))
    assert 0 == finished.returncode, finished.stderr
    assert finished.stdout.index("test accuracy") < finished.stdout.index("UncachedCompile")
    assert finished.stdout.index("UncachedCompile") < finished.stdout.index("Try next:")


def test_an_unknown_backend_is_answered_with_the_nearest_name() -> None:
    finished = run_python("-m", "torchport", "demo", "--backend", "nul")
    assert 2 == finished.returncode
    assert "there is no backend 'nul'. Did you mean 'null'?" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_backend_that_computes_nothing_misses_the_goal(tmp_path: Path) -> None:
    finished = run_python(
        *("-m", "torchport.cli", "demo", "--backend", "null", "--epochs", "1", "--out", str(tmp_path / "demo.png"))
    )
    assert 1 == finished.returncode, finished.stderr
    assert "the goal is at least 97%" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_ctrl_c_in_the_middle_of_the_training_ends_the_process_cleanly(tmp_path: Path) -> None:
    finished = run_python("-c", INTERRUPTED_IN_STEP_20, str(tmp_path / "demo.png"))
    assert 130 == finished.returncode, finished.stderr
    assert finished.stderr.rstrip().endswith("torchport demo: interrupted")
    assert "Traceback" not in finished.stderr


def test_backends_lists_the_interpreter_with_its_version() -> None:
    finished = run_python("-m", "torchport.cli", "backends")
    assert 0 == finished.returncode, finished.stderr
    assert any(line.startswith("PASS  interpreter") for line in finished.stdout.splitlines())


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    closed_pipe = "r, w = os.pipe(); os.close(r); os.dup2(w, 1)"
    code = f"import os; from torchport.cli import main; {closed_pipe}; main(['backends'])"
    finished = run_python("-c", code)
    assert "" == finished.stderr
