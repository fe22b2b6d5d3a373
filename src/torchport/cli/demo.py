"""``torchport demo``: the digits, trained on the lazy device and then on the CPU, with figures, goals and a picture."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import torchport
from torchport import metrics
from torchport.backend.registry import default_registry
from torchport.cli import digits, picture
from torchport.cli.problem import FAILED, CommandError, require_packages
from torchport.config import settings

SUMMARY = "train a small network on handwritten digits, on the lazy device and on the CPU, and compare"
PACKAGES = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "rich": "rich"}
ACCURACY_GOAL = 0.97
LOSS_DIFFERENCE_GOAL = 1e-4


@dataclass(frozen=True, slots=True)
class Figures:
    """What the demo measured.

    Attributes:
        device: where it trained first; the second time is on the CPU.
        backend: the backend that ran the graphs.
        epochs: passes over the training part.
        steps: training steps on each device.
        accuracy: share of the test digits that the network trained on the lazy device gets right.
        cpu_accuracy: the same for the network trained on the CPU.
        loss_difference: the largest difference between the losses of the same step.
        same_random_stream: whether the backend promises eager PyTorch's random numbers; only then are the dropout
            masks, and so the losses, the same.
        compiles: graphs compiled, over everything the demo did.
        compiles_per_epoch: graphs compiled during each epoch of the training.
        ops_per_step: traced operations in one training step.
        step_ms: median over the epochs of the time per step on the lazy device, without the first epoch.
        cpu_step_ms: the same on the CPU.
        picture: where the PNG is.
    """

    device: str
    backend: str
    epochs: int
    steps: int
    accuracy: float
    cpu_accuracy: float
    loss_difference: float
    same_random_stream: bool
    compiles: int
    compiles_per_epoch: tuple[int, ...]
    ops_per_step: float
    step_ms: float
    cpu_step_ms: float
    picture: str

    def missed_goals(self) -> list[str]:
        """A sentence for each figure that misses its goal. A loss that is not a number misses."""
        missed = []
        if not self.accuracy >= ACCURACY_GOAL:
            missed.append(f"test accuracy is {self.accuracy:.1%}, the goal is at least {ACCURACY_GOAL:.0%}")
        if self.same_random_stream and not self.loss_difference < LOSS_DIFFERENCE_GOAL:
            missed.append(
                f"the losses differ by {self.loss_difference:.1e}, the goal is less than {LOSS_DIFFERENCE_GOAL:.0e}"
            )
        return missed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``torchport demo``."""
    parser.add_argument("--backend", metavar="NAME", help="the backend to run on; default: the active one")
    parser.add_argument("--epochs", type=_positive, default=15, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, default=Path("torchport-demo.png"), metavar="PATH", help="the picture; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else, on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Train on both devices, show the figures; returns 1 when one of them misses its goal."""
    require_packages("torchport demo", PACKAGES)
    if arguments.backend is not None:
        torchport.use(arguments.backend)
    check_writable(arguments.out)
    # A step takes a few milliseconds: on a busy machine two threads would wait for each other longer than that.
    torch.set_num_threads(1)
    figures = measure(settings.device_name, arguments.epochs, arguments.out)
    missed = figures.missed_goals()
    if arguments.json:
        print(json.dumps(asdict(figures) | {"missed_goals": missed}, indent=2))
    else:
        show(figures)
    for sentence in missed:
        print(f"torchport demo: {sentence}", file=sys.stderr)
    if missed and arguments.epochs < 10:
        print("torchport demo: with more epochs (the default is 15) it learns more", file=sys.stderr)
    return FAILED if missed else 0


def measure(device: str, epochs: int, out: Path) -> Figures:
    """Train on ``device`` and on the CPU with the same seeds, and draw the picture."""
    data = digits.load_digits()
    compiles_before, ops_before = metrics.counter_value("UncachedCompile"), traced_ops()
    compiles = [compiles_before]
    with progress_bar(epochs * (digits.TRAIN_IMAGES // digits.BATCH)) as start:
        run_device = digits.train(
            device,
            data,
            epochs,
            on_step=start(f"training on {device}"),
            on_epoch=lambda: compiles.append(metrics.counter_value("UncachedCompile")),
        )
        steps = len(run_device.losses)
        ops_per_step = (traced_ops() - ops_before) / steps
        predictions = digits.predict(run_device.network, data.test_images, device)
        run_cpu = digits.train("cpu", data, epochs, on_step=start("training on cpu"))
        cpu_predictions = digits.predict(run_cpu.network, data.test_images, "cpu")
    test_accuracy = digits.accuracy(predictions, data.test_labels)
    registry = default_registry()  # the first use of the device has activated a backend
    backend = registry.active_name or "eager"
    same_random_stream = registry.active is None or registry.active.capabilities.eager_random_stream
    picture.draw(
        out,
        f"Handwritten digits on {device} ({backend}): {test_accuracy:.1%} of {len(predictions)} test images right",
        [(device, run_device.losses), ("cpu", run_cpu.losses)],
        steps // epochs,
        data.test_images,
        data.test_labels,
        predictions,
    )
    return Figures(
        device=device,
        backend=backend,
        epochs=epochs,
        steps=steps,
        accuracy=test_accuracy,
        cpu_accuracy=digits.accuracy(cpu_predictions, data.test_labels),
        loss_difference=float((run_device.losses - run_cpu.losses).abs().max()),
        same_random_stream=same_random_stream,
        compiles=metrics.counter_value("UncachedCompile") - compiles_before,
        compiles_per_epoch=tuple(after - before for before, after in itertools.pairwise(compiles)),
        ops_per_step=ops_per_step,
        step_ms=typical_step_ms(run_device.epoch_step_s),
        cpu_step_ms=typical_step_ms(run_cpu.epoch_step_s),
        picture=str(out),
    )


def show(figures: Figures) -> None:
    """Print the figures as a table, the metrics report, and what to try next."""
    console = importlib.import_module("rich.console").Console()
    table = importlib.import_module("rich.table").Table(title=f"{figures.epochs} epochs, {figures.steps} steps")
    for column in ("", f"{figures.device} ({figures.backend})", "cpu", "goal"):
        table.add_column(column)
    difference_goal = f"< {LOSS_DIFFERENCE_GOAL:.0e}" if figures.same_random_stream else "none: own random numbers"
    later = sum(figures.compiles_per_epoch[1:])
    rows = [
        ("test accuracy", f"{figures.accuracy:.1%}", f"{figures.cpu_accuracy:.1%}", f">= {ACCURACY_GOAL:.0%}"),
        ("largest difference of the losses", f"{figures.loss_difference:.1e}", "", difference_goal),
        ("graphs compiled", f"{figures.compiles} ({later} after epoch 1)", "", ""),
        ("operations traced per step", f"{figures.ops_per_step:.0f}", "", ""),
        ("time per step", f"{figures.step_ms:.2f} ms", f"{figures.cpu_step_ms:.2f} ms", ""),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    print(f"\nThe loss curves and some digits are in {figures.picture}.\n")
    print(metrics.report())
    print(
        "\nTry next:\n"
        "    python examples/digits.py        the same training as a short script to read and change\n"
        "    torchport backends               what else can run the graphs here\n"
        "    torchport demo --backend NAME    the same on another backend\n"
        "    torchport bench                  against eager PyTorch, its own lazy core and torch.compile"
    )


@contextmanager
def progress_bar(steps: int) -> Iterator[Any]:
    """A progress bar on stderr; gives ``start(description)``, which gives the function to call after each step."""
    module = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = (*module.Progress.get_default_columns()[:2], module.MofNCompleteColumn(), module.TimeElapsedColumn())
    # A refresh takes the interpreter lock from the training for about a millisecond: four a second is enough to see.
    with module.Progress(*columns, console=console, refresh_per_second=4) as progress:

        def start(description: str) -> Any:
            task = progress.add_task(description, total=steps)
            return lambda: progress.advance(task)

        yield start


def traced_ops() -> int:
    """All operations that were traced so far in this process."""
    return sum(metrics.counter_value(name) for name in metrics.counter_names() if name.startswith("lazy::"))


def typical_step_ms(epoch_step_s: tuple[float, ...]) -> float:
    """The median over the epochs, without the first where there is another: it compiles and allocates."""
    return 1e3 * statistics.median(epoch_step_s[1:] or epoch_step_s)


def check_writable(path: Path) -> None:
    """Raise before the training rather than after it when the picture cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        problem = "it is a folder" if path.is_dir() else ""
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            problem = "no permission to write there"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise CommandError(f"the picture cannot be written to {path}: {problem}. Choose a file with --out PATH.")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
