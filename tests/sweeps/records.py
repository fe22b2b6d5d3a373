"""What a sweep finds: a status for each sample and each operator, and how it travels from a child process."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """How a sample ended, the worst first; the worst sample decides for the operator."""

    CRASH = "crash"
    """The process died."""
    TIMEOUT = "timeout"
    EXCEPTION = "exception"
    """The device raised, where the CPU did not."""
    WRONG = "wrong"
    """Other values than the CPU's."""
    UNUSABLE = "unusable"
    """The result can be read, but a further operation on it fails or sees something else."""
    META = "meta"
    """Another structure, shape, dtype or device."""
    COMPILES = "compiles"
    """Equal to the CPU, but compiled again and again."""
    LOOSE = "loose"
    """Equal only within 1e-3."""
    PASS = "pass"
    SKIP = "skip"
    """The operator has no sample that the CPU itself can run in this mode."""


WORST_FIRST = tuple(Status)
NOT_FAILED = frozenset({Status.PASS, Status.SKIP})


@dataclass(slots=True)
class SampleRecord:
    """One sample's outcome.

    Attributes:
        index: its position among the operator's samples.
        status: how it ended.
        error: the first lines of what went wrong.
        fallbacks: the operators that ran eagerly, and how often.
        layout: how strides, storage offsets, conjugate bits or shared storages differ from eager's; empty if equal.
        rounding: how far the device and the CPU are from the exact result, where they differ and neither is nearer.
        reloading: what is compiled where a program goes on from what it saved, although it was compiled before.
        random: the CPU itself gives other values each time, so values were not compared.
        same_random: whether they were the CPU's all the same, under the same seed.
    """

    index: int
    status: Status = Status.PASS
    error: str = ""
    fallbacks: dict[str, int] = field(default_factory=dict)
    layout: str = ""
    rounding: str = ""
    reloading: str = ""
    random: bool = False
    same_random: bool = True

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> SampleRecord:
        """The record that :meth:`to_json` wrote."""
        return cls(**{**fields, "status": Status(fields["status"])})


@dataclass(slots=True)
class OpResult:
    """An operator's outcome: its worst sample's, and everything that any sample found."""

    name: str
    mode: str
    dtype: str
    samples: list[SampleRecord]
    seconds: float = 0.0

    @property
    def worst(self) -> SampleRecord | None:
        """The first of the samples with the worst status."""
        return min(self.samples, key=lambda s: WORST_FIRST.index(s.status), default=None)

    @property
    def status(self) -> Status:
        """The worst sample's status."""
        return self.worst.status if self.worst else Status.SKIP

    @property
    def error(self) -> str:
        """The worst sample's error."""
        return self.worst.error if self.worst else ""

    @property
    def failed(self) -> bool:
        """Neither passed nor skipped."""
        return self.status not in NOT_FAILED

    @property
    def fallbacks(self) -> dict[str, int]:
        """All fallbacks of all samples."""
        total: dict[str, int] = {}
        for sample in self.samples:
            for name, count in sample.fallbacks.items():
                total[name] = total.get(name, 0) + count
        return total

    @property
    def layout(self) -> str:
        """The first difference of layout."""
        return next((s.layout for s in self.samples if s.layout), "")

    @property
    def reloading(self) -> str:
        """The first note of what is compiled after a state was loaded."""
        return next((s.reloading for s in self.samples if s.reloading), "")

    @property
    def rounding(self) -> str:
        """The first note of how results were rounded."""
        return next((s.rounding for s in self.samples if s.rounding), "")
