"""Timers: how often something was timed, for how long altogether, and how the recent times are spread."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

RING_SIZE = 1024
"""How many recent samples a timer keeps for its percentiles, as in PyTorch's ``lazy::Metric``."""


@dataclass(frozen=True, slots=True)
class TimerSummary:
    """What a timer has recorded since the last reset, as of one moment.

    Attributes:
        count: the number of samples.
        total_s: their sum.
        min_s, max_s: the shortest and the longest; 0 without a sample.
        recent_s: the last samples, sorted; at most ``RING_SIZE`` of them.
    """

    count: int = 0
    total_s: float = 0.0
    min_s: float = 0.0
    max_s: float = 0.0
    recent_s: tuple[float, ...] = field(default=(), repr=False)

    @property
    def mean_s(self) -> float:
        """The mean of all samples; 0 without a sample."""
        return self.total_s / self.count if self.count else 0.0

    def percentile_s(self, percent: float) -> float:
        """The smallest recent sample that at least ``percent`` of a hundred do not exceed; 0 without a sample.

        Source: the nearest-rank method, as in PyTorch's ``lazy::CreateMetricReport``.

        Raises:
            ValueError: ``percent`` is not within 0 and 100.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"percentile_s({percent}): percent must be within 0 and 100")
        if not self.recent_s:
            return 0.0
        rank = math.ceil(percent / 100 * len(self.recent_s))
        return self.recent_s[max(rank, 1) - 1]


class Timer:
    """Collects times. Any thread may record; a sample is never lost."""

    __slots__ = ("_count", "_lock", "_max_s", "_min_s", "_recent_s", "_total_s", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = Lock()
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._total_s = 0.0
        self._min_s = math.inf
        self._max_s = 0.0
        self._recent_s: deque[float] = deque(maxlen=RING_SIZE)

    def record(self, value_s: float) -> None:
        """Adds one sample, in seconds."""
        with self._lock:
            self._count += 1
            self._total_s += value_s
            self._min_s = min(self._min_s, value_s)
            self._max_s = max(self._max_s, value_s)
            self._recent_s.append(value_s)

    def reset(self) -> None:
        """Forgets every sample."""
        with self._lock:
            self._clear()

    def renew_lock(self) -> None:
        """Replaces the lock: in a forked child it may be held by a thread that does not exist there."""
        self._lock = Lock()

    def summary(self) -> TimerSummary:
        """What was recorded since the last reset."""
        with self._lock:
            if not self._count:
                return TimerSummary()
            recent_s = tuple(self._recent_s)
            count, total_s, min_s, max_s = self._count, self._total_s, self._min_s, self._max_s
        return TimerSummary(count, total_s, min_s, max_s, tuple(sorted(recent_s)))

    def __repr__(self) -> str:
        return f"Timer({self.name!r}, {self.summary()})"


_timers: dict[str, Timer] = {}


def timer(name: str) -> Timer:
    """The timer of this name, made at the first call. The object stays the same for the life of the process."""
    found = _timers.get(name)
    return found if found is not None else _timers.setdefault(name, Timer(name))


def record(name: str, value_s: float) -> None:
    """Adds one sample, in seconds, to the timer of this name."""
    timer(name).record(value_s)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Times the block and records it under this name, also when it raises."""
    start_s = time.perf_counter()
    try:
        yield
    finally:
        record(name, time.perf_counter() - start_s)


def timer_names() -> list[str]:
    """The names of the timers that have a sample since the last reset, sorted."""
    return sorted(t.name for t in list(_timers.values()) if t.summary().count)


def timer_summary(name: str) -> TimerSummary:
    """What the timer of this name has recorded since the last reset; an empty summary when there is no such timer."""
    found = _timers.get(name)
    return found.summary() if found is not None else TimerSummary()


def reset_timers() -> None:
    """Forgets every sample. The objects stay, so that references to them remain valid."""
    for t in list(_timers.values()):
        t.reset()


def _renew_locks() -> None:
    for t in _timers.values():
        t.renew_lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_locks)
