"""The demo's picture: both loss curves, and test digits with the network's predictions."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

ROWS, COLUMNS = 4, 8
WINDOW = 15
PORT_COLOUR, CPU_COLOUR, WRONG_COLOUR = "#1f6fb4", "#e07b00", "#c22020"


def draw(
    path: Path,
    title: str,
    losses: Sequence[tuple[str, Tensor]],
    steps_per_epoch: int,
    images: Tensor,
    labels: Tensor,
    predictions: Tensor,
) -> None:
    """Write a PNG with the loss curves on the left and ``ROWS * COLUMNS`` digits on the right, wrong ones first.

    Args:
        path: where the PNG goes.
        title: the line above both parts.
        losses: two curves as (name, losses of every step); the second is dashed, so that both show where they agree.
        steps_per_epoch: scales the horizontal axis.
        images: test images as (count, 1, height, width).
        labels: their digits as (count,).
        predictions: the network's digits as (count,).
    """
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")  # draws into files: no display is needed
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure = pyplot.figure(figsize=(12, 4.8), layout="constrained")
    figure.suptitle(title)
    curves, digits = figure.subfigures(1, 2, width_ratios=(1, 1))
    axes = curves.subplots()
    styles = ({"color": PORT_COLOUR, "linewidth": 3.0}, {"color": CPU_COLOUR, "linewidth": 1.2, "linestyle": "--"})
    for (name, values), style in zip(losses, styles, strict=True):
        epochs = [step / steps_per_epoch for step in range(len(values))]
        axes.plot(epochs, values.tolist(), color=style["color"], linewidth=0.5, alpha=0.25)
        axes.plot(epochs, running_mean(values).tolist(), label=name, **style)
    axes.set(xlabel="epoch", ylabel=f"training loss, mean of the last {WINDOW} steps", yscale="log")
    axes.grid(alpha=0.25)
    axes.legend()
    digits.suptitle("what the network reads in test images; its mistakes first, in red", fontsize=10)
    # Wrong predictions are the interesting ones, and few: a stable sort puts them in front.
    order = (predictions == labels).int().argsort(stable=True)[: ROWS * COLUMNS].tolist()
    cells = digits.subplots(ROWS, COLUMNS).ravel()
    for cell in cells:
        cell.axis("off")
    for cell, index in zip(cells, order, strict=False):
        cell.imshow(images[index, 0].numpy(), cmap="gray_r")
        seen, true = int(predictions[index]), int(labels[index])
        if seen == true:
            cell.set_title(f"{seen}", fontsize=10)
        else:
            cell.set_title(f"{seen}, is {true}", fontsize=10, color=WRONG_COLOUR)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def running_mean(values: Tensor) -> Tensor:
    """The mean of each value and the up to ``WINDOW - 1`` before it."""
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), values.double().cumsum(0)])
    ends = torch.arange(1, len(values) + 1)
    starts = (ends - WINDOW).clamp(min=0)
    return (sums[ends] - sums[starts]) / (ends - starts)
