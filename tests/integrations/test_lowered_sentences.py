"""The real sentence encoder of examples/ is lowered, saved, and ranks sentences in new processes as eager does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.subprocess


def run(example: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "examples" / example, *map(str, arguments)]
    # Wide, so that argparse breaks no line of what is compared.
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ | {"COLUMNS": "500"})


def test_the_encoder_ranks_in_other_processes_as_in_eager(tmp_path: Path) -> None:
    done = run("lower_sentences.py", "--out", tmp_path / "sentences.tport")
    assert 0 == done.returncode, done.stderr
    assert (tmp_path / "sentences.tport").is_file()
    assert re.search(r"forward: (\d+) of \1 nodes in 1 parts run on interpreter", done.stdout)
    assert "with torchport (PyTorch is imported)" in done.stdout
    assert "with torchport_runtime (PyTorch is not imported)" in done.stdout
    differences = re.findall(r"largest difference from eager: (\S+)", done.stdout)
    assert 2 == len(differences)
    assert all(float(d) <= 1e-5 for d in differences)  # what the project asks of itself; the example says why
    best = re.findall(r"is nearest to\n  \d\.\d\d  (.*)", done.stdout)
    assert ["Shares dropped on Wall Street.", "Someone is having a meal."] == [best[0], best[2]]


def test_wrong_usage_is_answered(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    done = run("lower_sentences.py", "--out", nowhere / "s.tport")
    assert 2 == done.returncode
    assert f"there is no folder {nowhere}; make it first" in done.stderr
    done = run("rank_sentences.py", nowhere / "s.tport", nowhere / "tokens.npz", tmp_path / "out.npz")
    assert 2 == done.returncode
    assert f"there is no file {nowhere / 's.tport'} and no {nowhere / 'tokens.npz'}" in done.stderr
    assert "Traceback" not in done.stderr
