"""The programs beside the package: the example and the benchmarks run, and print what they promise."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import torchport

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(torchport.__file__).resolve().parents[1]


def run_script(*arguments: str) -> str:
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == finished.returncode, finished.stderr
    return finished.stdout


def load_script(path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    file = ROOT / path
    monkeypatch.syspath_prepend(str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_stays_short() -> None:
    assert len((ROOT / "examples/digits.py").read_text(encoding="utf-8").splitlines()) < 120


def test_the_example_reaches_the_goal_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load_script("examples/digits.py", monkeypatch)
    monkeypatch.setattr(example, "EPOCHS", 6)
    assert example.main("cpu") >= 0.97
    assert "of the 357 test digits are right" in capsys.readouterr().out


@pytest.mark.subprocess
def test_the_training_steps_are_measured_side_by_side(tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    contenders = ("eager", "lazy_core", "port")
    text = run_script(
        *("bench/train_steps.py", "--models", "mlp", "--contenders", *contenders),
        *("--rounds", "1", "--round-s", "0.01", "--json", str(out)),
    )
    assert "mlp: MLP, 3 x Linear(64), batch 32, SGD" in text
    assert "tracing, port / torch._lazy: " in text
    content = json.loads(out.read_text(encoding="utf-8"))
    assert {"threads": 1, "rounds": 1} == content["settings"]
    figures = content["models"]["mlp"]
    assert contenders == tuple(figures)
    assert {"min": 1.0, "median": 1.0} == figures["eager"]["ratio"]
    for name in ("lazy_core", "port"):
        assert figures[name]["loss_difference"] < 1e-5
        assert figures[name]["ops"] > 10
        assert 0 == figures[name]["compiles"]
        assert figures[name]["trace_us_per_op"] > 0


@pytest.mark.subprocess
def test_a_contender_that_ends_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("bench/train_steps.py", monkeypatch)
    monkeypatch.setenv("TORCHPORT_BACKEND", "no such backend!")
    arguments = script.argparse.Namespace(contenders=["eager", "port"], threads=1, rounds=1, round_s=0.01)
    result = script.measure("mlp", arguments)
    assert "SettingError" in result["port"]["problem"] or "no such backend!" in result["port"]["problem"]
    assert result["eager"]["step_ms"]["min"] > 0


def test_ratios_are_to_eager_and_to_the_lazy_core(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("bench/train_steps.py", monkeypatch)

    def figures(low: float, high: float, trace: float | None = None) -> dict[str, object]:
        traced = {"trace_ms": {"min": trace, "median": 2 * trace}, "ops": 50.0} if trace else {}
        return {"step_ms": {"min": low, "median": high}, "losses": [1.0, 0.5], **traced}

    result = script.derive(
        {
            "eager": figures(2.0, 4.0),
            "lazy_core": figures(8.0, 8.0, 4.0),
            "port": {**figures(3.0, 4.0, 1.0), "losses": [1.0, 0.25]},
            "torch_compile": {"problem": "no compiler"},
        }
    )
    assert {"min": 4.0, "median": 2.0} == result["lazy_core"]["ratio"]
    assert {"min": 0.25, "median": 0.25} == result["port"]["trace_ratio"]
    assert 20.0 == result["port"]["trace_us_per_op"]
    assert 0.25 == result["port"]["loss_difference"]
    assert {"problem": "no compiler"} == result["torch_compile"]


@pytest.mark.subprocess
def test_memory_prints_the_first_and_the_last_size(tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    text = run_script("bench/memory.py", "--device", "cpu", "--steps", "40", "--json", str(out))
    assert "first " in text
    content = json.loads(out.read_text(encoding="utf-8"))
    assert list(range(4, 44, 4)) == [step for step, _ in content["samples"]]
    assert content["growth_bytes"] == content["last_bytes"] - content["first_bytes"]


@pytest.mark.subprocess
def test_import_time_counts_fresh_processes(tmp_path: Path) -> None:
    out = tmp_path / "import.json"
    assert "import torchport after it" in run_script("bench/import_time.py", "--processes", "1", "--json", str(out))
    assert 1 == len(json.loads(out.read_text(encoding="utf-8"))["torchport_s"])
