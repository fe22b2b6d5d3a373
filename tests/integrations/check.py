"""One program of a trainer of another package, run on the CPU and on the device, and what is compared."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

import torchport

D = torchport.settings.device_name

Program = Callable[[str, Path], Any]
"""``program(device, folder)``: what it computed on that device, a pytree; the folder is empty and its own."""


@dataclass(frozen=True, slots=True)
class Check:
    """A program with what the table says about it.

    Attributes:
        library: the packages whose code it runs, as on PyPI.
        title: what it does, in one line.
        change: what a program written for another device changes, besides the device's name.
        program: the program.
        rtol, atol: ``None`` for the defaults of ``torch.testing.assert_close`` for the dtype.
    """

    library: tuple[str, ...]
    title: str
    change: str
    program: Program
    rtol: float | None = None
    atol: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a check.

    Attributes:
        difference: the largest absolute one between a number on the device and on the CPU.
        numbers: how many were compared.
        fallbacks: the operators that ran eagerly, with how often.
    """

    difference: float
    numbers: int
    fallbacks: dict[str, int]


def seed_everything(seed: int) -> None:
    """Starts every generator that a program may draw from again."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def run(check: Check) -> Outcome:
    """Runs the program on both devices and compares.

    Raises:
        AssertionError: they differ, or the device computed nothing.
    """
    wanted = _on(check, "cpu")
    before, fallbacks = _counter("Execute"), _fallbacks()
    got = _on(check, D)
    difference, count = _compare(check, wanted, got)
    assert _counter("Execute") > before, f"{check.title}: nothing was executed on {D!r}"
    new = {name: n - fallbacks.get(name, 0) for name, n in _fallbacks().items() if n > fallbacks.get(name, 0)}
    return Outcome(difference, count, new)


def _on(check: Check, device: str) -> Any:
    seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        return check.program(device, Path(folder))


def _counter(name: str) -> int:
    return int(torchport.metrics.counter_value(name) or 0)


def _fallbacks() -> dict[str, int]:
    names = [n for n in torchport.metrics.counter_names() if n.startswith("aten::")]
    return {n: _counter(n) for n in names}


def _compare(check: Check, wanted: Any, got: Any) -> tuple[float, int]:
    wanted_leaves, wanted_spec = pytree.tree_flatten_with_path(wanted)
    got_leaves, got_spec = pytree.tree_flatten_with_path(got)
    assert wanted_spec == got_spec, f"{check.title}: another form"
    difference, count = 0.0, 0
    for (path, w), (_, g) in zip(wanted_leaves, got_leaves, strict=True):
        if not isinstance(w, float | torch.Tensor | numpy.ndarray | numpy.floating):
            assert w == g, f"{check.title}: {pytree.keystr(path)}"
            continue
        # A Python float here was read from a float32 tensor, and is compared as one.
        w, g = (torch.as_tensor(x, dtype=torch.float32 if isinstance(x, float) else None).detach() for x in (w, g))
        assert g.device.type == "cpu" or g.device.type == D
        g = g.cpu()
        torch.testing.assert_close(
            g, w, rtol=check.rtol, atol=check.atol, msg=lambda m, p=path: f"{check.title}: {pytree.keystr(p)}: {m}"
        )
        count += w.numel()
        if w.numel():
            difference = max(difference, (g.double() - w.double()).abs().max().item())
    return difference, count
