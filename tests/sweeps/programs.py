"""Runs a program on the CPU and on the device and tells how what it returns differs.

A program is a function of the device that names its results, so that a difference says which of them it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

import torchport
from sweeps.comparison import assert_same_values, layout_difference, metadata_difference, on_cpu
from sweeps.modes import tensors_of
from sweeps.records import SampleRecord, Status
from sweeps.reference import as_near
from torchport.config import settings

DEVICE = settings.device_name


@dataclass(slots=True)
class Outcome:
    """What a program returns.

    Attributes:
        device: its results on the device that it ran on, by name.
        host: those that are on the CPU whatever the device.
        compiles: how many graphs each of its steps compiled; nothing where a program has no steps.
        compiles_after_loading: the same of steps that go on from a state that was saved and loaded.
    """

    device: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    compiles: list[int] = field(default_factory=list)
    compiles_after_loading: list[int] = field(default_factory=list)


Program = Callable[[str], Outcome]
T = TypeVar("T")


def compared(index: int, program: Program, exact: Program | None = None, settled_after: int = 3) -> SampleRecord:
    """How the program ends on the device, set against the CPU; after so many steps it must compile nothing.

    ``exact`` is the same program in double precision, and decides where both round (:mod:`sweeps.reference`).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = _seeded(program)
        except Exception as error:  # noqa: BLE001  # what the CPU refuses the device need not take
            return SampleRecord(index, Status.SKIP, _text(error))
        record = SampleRecord(index)
        before = torchport.executed_fallback_ops()
        try:
            got = _seeded(program, DEVICE)
            _judge(record, wanted, got, exact)
        except Exception as error:  # noqa: BLE001  # it is the finding, and is kept
            record.status, record.error = Status.EXCEPTION, _text(error)
        after = torchport.executed_fallback_ops()
        record.fallbacks = {k: n - before.get(k, 0) for k, n in after.items() if n > before.get(k, 0)}
        if record.status is Status.PASS:
            if any(got.compiles[settled_after:]):
                record.status, record.error = Status.COMPILES, f"graphs compiled by each step: {got.compiles}"
            if any(got.compiles_after_loading):
                record.reloading = f"graphs compiled by each step after loading: {got.compiles_after_loading}"
        return record


def _seeded(program: Program, device: str = "cpu") -> Outcome:
    torch.manual_seed(0)
    return program(device)


def _text(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines)[:300]}"


def _judge(record: SampleRecord, wanted: Outcome, got: Outcome, exact: Program | None) -> None:
    for place, device in (("device", DEVICE), ("host", "cpu")):
        w, g = getattr(wanted, place), getattr(got, place)
        if list(w) != list(g):
            raise AssertionError(f"results {list(w)} wanted, got {list(g)}")
        for name in w:
            record.layout = record.layout or _named(name, layout_difference(w[name], g[name]))
            try:
                assert_same_values(on_cpu(w[name]), on_cpu(g[name]))
            except AssertionError as error:
                rounding = exact and _rounding(getattr(_seeded(exact), place)[name], w[name], g[name])
                if not rounding:
                    record.status, record.error = Status.WRONG, _named(name, _text(error))
                    return
                record.rounding = _named(name, rounding)
            if difference := metadata_difference(w[name], g[name], device):
                record.status, record.error = Status.META, _named(name, difference)


def _rounding(exact: Any, wanted: Any, got: Any) -> str:
    """How far both are from the exact results, if the device is as near to them as the CPU; else nothing."""
    for e, w in zip(tensors_of(exact), tensors_of(wanted), strict=True):
        assert_same_values(e, w.to(e.dtype), loosely=True)  # or it is no reference
    return as_near(exact, wanted, got)


def _named(name: str, difference: str) -> str:
    return f"{name}: {difference}" if difference else ""


def spread(items: list[T], limit: int) -> list[tuple[int, T]]:
    """Up to ``limit`` of the items with their positions: the first, the last, and those at even distances between."""
    if limit >= len(items):
        return list(enumerate(items))
    chosen = [i * (len(items) - 1) // max(limit - 1, 1) for i in range(limit)]
    return [(i, items[i]) for i in chosen]
