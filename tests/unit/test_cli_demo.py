"""``torchport demo``: its goals, its picture and its messages. The training runs on the CPU, so no device is needed."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchport.cli import demo, digits, main, picture
from torchport.cli.demo import Figures

GOOD = Figures(
    device="port",
    backend="interpreter",
    epochs=15,
    steps=675,
    accuracy=0.98,
    cpu_accuracy=0.98,
    loss_difference=0.0,
    same_random_stream=True,
    compiles=4,
    compiles_per_epoch=(3,) + (0,) * 14,
    ops_per_step=120.0,
    step_ms=3.0,
    cpu_step_ms=2.0,
    picture="demo.png",
)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Figures]:
    """The list whose last element the demo takes for its measurement."""
    figures = [GOOD]
    monkeypatch.setattr(demo, "measure", lambda device, epochs, out: figures[-1])
    return figures


def test_the_digits_are_split_without_overlap_and_always_alike() -> None:
    first, second = digits.load_digits(), digits.load_digits()
    assert (1440, 1, 8, 8) == tuple(first.train_images.shape)
    assert (357, 1, 8, 8) == tuple(first.test_images.shape)
    assert torch.equal(first.test_images, second.test_images)
    assert 1.0 == first.train_images.max().item()
    counts = torch.cat([first.train_labels, first.test_labels]).bincount()
    assert [178, 182, 177, 183, 181, 182, 181, 179, 174, 180] == counts.tolist()


def test_training_twice_on_one_device_gives_equal_losses() -> None:
    data = digits.load_digits()
    steps: list[None] = []
    epochs: list[int] = []
    first = digits.train("cpu", data, 1, lambda: steps.append(None), lambda: epochs.append(len(steps)))
    second = digits.train("cpu", data, 1)
    assert torch.equal(first.losses, second.losses)
    assert first.losses[-1] < first.losses[0] / 2
    assert [45] == epochs
    assert 1 == len(first.epoch_step_s)


def test_the_cpu_run_reaches_the_goals_and_draws_the_picture(tmp_path: Path) -> None:
    figures = demo.measure("cpu", 5, tmp_path / "new" / "demo.png")
    assert [] == figures.missed_goals()
    assert 0.0 == figures.loss_difference
    assert figures.accuracy == figures.cpu_accuracy
    assert 5 * 45 == figures.steps
    assert (0,) * 5 == figures.compiles_per_epoch
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(PNG_SIGNATURE)


def test_the_picture_puts_wrong_predictions_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    from matplotlib.axes import Axes

    set_title = Axes.set_title
    monkeypatch.setattr(Axes, "set_title", lambda self, text, **how: (shown.append(text), set_title(self, text, **how)))
    labels = torch.arange(10).repeat(5)
    predictions = labels.clone()
    predictions[37] = 3
    curve = torch.linspace(2.0, 0.1, 20)
    images = torch.rand(50, 1, 8, 8)
    picture.draw(tmp_path / "p.png", "title", [("port", curve), ("cpu", curve)], 10, images, labels, predictions)
    assert ["3, is 7", "0", "1", "2"] == shown[:4]
    assert picture.ROWS * picture.COLUMNS == len(shown)


def test_the_running_mean_starts_with_what_there_is() -> None:
    values = torch.arange(40.0)
    mean = picture.running_mean(values)
    assert [0.0, 0.5, 1.0] == mean[:3].tolist()
    assert values[-picture.WINDOW :].mean() == mean[-1]


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        (GOOD, []),
        (replace(GOOD, accuracy=0.97, loss_difference=9.9e-5), []),
        (replace(GOOD, accuracy=0.95), ["test accuracy is 95.0%, the goal is at least 97%"]),
        (replace(GOOD, loss_difference=2e-4), ["the losses differ by 2.0e-04, the goal is less than 1e-04"]),
        (replace(GOOD, loss_difference=math.nan), ["the losses differ by nan, the goal is less than 1e-04"]),
        (replace(GOOD, accuracy=math.nan), ["test accuracy is nan%, the goal is at least 97%"]),
        (replace(GOOD, loss_difference=0.5, same_random_stream=False), []),
    ],
)
def test_goals(figures: Figures, missed: list[str]) -> None:
    assert missed == figures.missed_goals()


def test_a_run_that_holds_its_goals_ends_with_the_report_and_what_to_try(
    measured: list[Figures], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.metrics, "report", lambda: "THE REPORT")
    assert main(["demo", "--out", str(tmp_path / "x.png")]) == 0
    out = capsys.readouterr().out
    for text in (
        "98.0%",
        ">= 97%",
        "0.0e+00",
        "< 1e-04",
        "4 (0 after epoch 1)",
        "120",
        "3.00 ms",
        "2.00 ms",
    ):
        assert text in out
    assert out.index("THE REPORT") < out.index("Try next:")


def test_a_missed_goal_gives_code_1_and_a_sentence(
    measured: list[Figures], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measured.append(replace(GOOD, accuracy=0.5))
    assert main(["demo", "--epochs", "1", "--out", str(tmp_path / "x.png")]) == 1
    err = capsys.readouterr().err
    assert "torchport demo: test accuracy is 50.0%, the goal is at least 97%" in err
    assert "with more epochs" in err


def test_json_is_all_that_is_on_stdout(
    measured: list[Figures], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measured.append(replace(GOOD, loss_difference=1.0))
    assert main(["demo", "--json", "--out", str(tmp_path / "x.png")]) == 1
    content = json.loads(capsys.readouterr().out)
    assert 0.98 == content["accuracy"]
    assert ["the losses differ by 1.0e+00, the goal is less than 1e-04"] == content["missed_goals"]


def test_missing_packages_are_told_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "PACKAGES", {"no_such_module": "scikit-learn"})
    assert main(["demo"]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_is_told_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "x.png"):
        assert main(["demo", "--out", str(place)]) == 2
        assert f"the picture cannot be written to {place}: " in capsys.readouterr().err


def test_ctrl_c_leaves_a_message_and_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(digits, "train", interrupted)
    assert main(["demo", "--out", str(tmp_path / "x.png")]) == 130
    err = capsys.readouterr().err
    assert "torchport demo: interrupted" in err
    assert "Traceback" not in err
    assert not (tmp_path / "x.png").exists()


def test_the_first_epoch_does_not_count_where_there_is_another() -> None:
    assert 2.0 == demo.typical_step_ms((1.0, 0.002, 0.001, 0.003))
    assert 4.0 == demo.typical_step_ms((0.004,))


def test_the_defaults() -> None:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    assert vars(parser.parse_args([])) == {
        "backend": None,
        "epochs": 15,
        "out": Path("torchport-demo.png"),
        "json": False,
    }
