"""What a run found: counts, and the share of core ATen that is right."""

from __future__ import annotations

import datetime
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from torchport.conformance.case import Result, Status
from torchport.conformance.catalogue import Choice
from torchport.conformance.operators.overloads import DTYPES, core_overloads
from torchport.conformance.subject import Subject

RIGHT = frozenset({Status.PASS, Status.UNEXPECTED_PASS})


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and on what a run was made.

    Attributes:
        backend: its name.
        owner: its class.
        versions: of the backend, torchport, torch and Python.
        machine: system, architecture, cores.
        date: of the run.
        capabilities: those that the backend declares.
    """

    backend: str
    owner: str
    versions: Mapping[str, str]
    machine: str
    date: str
    capabilities: tuple[str, ...]


def setting_of(subject: Subject, torchport_version: str) -> Setting:
    """Where this process runs."""
    versions = {
        subject.name: subject.availability.version or "not stated",
        "torchport": torchport_version,
        "torch": torch.__version__,
        "Python": platform.python_version(),
    }
    declared = tuple(name for name, on in asdict(subject.capabilities).items() if on)
    owner = subject.owner
    return Setting(
        subject.name,
        f"{owner.__module__}.{owner.__qualname__}",
        versions,
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        datetime.date.today().isoformat(),
        declared,
    )


@dataclass(frozen=True, slots=True)
class Share:
    """How many operators are right, refused with a reason, or wrong; and how many there are."""

    right: int
    refused: int
    wrong: int

    @property
    def total(self) -> int:
        """All that the CPU has."""
        return self.right + self.refused + self.wrong

    @property
    def percent(self) -> float:
        """The right ones in percent."""
        return 100 * self.right / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run.

    Attributes:
        setting: where it was made.
        choice: which cases were asked for.
        results: in the order of the cases.
        interrupted: whether somebody ended it before the last case.
    """

    setting: Setting
    choice: Choice
    results: Sequence[Result] = field(default_factory=tuple)
    interrupted: bool = False

    @property
    def failed(self) -> list[Result]:
        """What the run fails for."""
        return [r for r in self.results if r.failed]

    def counts(self, family: str = "") -> Counter[Status]:
        """How many cases ended how, of a family or of all."""
        return Counter(r.status for r in self.results if not family or r.case.family == family)

    @property
    def families(self) -> list[str]:
        """The families that took part, in order."""
        return list(dict.fromkeys(r.case.family for r in self.results))

    def share_in(self, dtype: str) -> Share:
        """Of the operators of core ATen that the CPU has in a dtype."""
        return _share([r for r in self._core() if r.case.dtype == dtype])

    def share_of_core(self) -> Share:
        """Of the operators of core ATen, each by the first dtype of the table that it has and that was tried."""
        first: dict[str, Result] = {}
        ranked = sorted(self._core(), key=lambda r: DTYPES.index(r.case.dtype))
        for result in ranked:
            first.setdefault(result.case.operator, result)
        return _share(list(first.values()))

    def _core(self) -> list[Result]:
        core = set(map(str, core_overloads()))
        tried = [r for r in self.results if r.case.operator in core]
        return [r for r in tried if r.status is not Status.NOT_APPLICABLE]

    def as_data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "setting": asdict(self.setting),
            "choice": asdict(self.choice),
            "interrupted": self.interrupted,
            "counts": {str(status): count for status, count in self.counts().items()},
            "core_aten": asdict(self.share_of_core()) | {"percent": round(self.share_of_core().percent, 1)},
            "results": [
                {"case": r.case.name, "status": str(r.status), "text": r.text, "seconds": round(r.seconds, 3)}
                for r in self.results
            ],
        }


def _share(results: Sequence[Result]) -> Share:
    right = sum(r.status in RIGHT for r in results)
    refused = sum(r.status is Status.REFUSED for r in results)
    return Share(right, refused, len(results) - right - refused)
