"""The metrics as a text for people, in the manner of PyTorch/XLA's report, and as a mapping for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torchport.metrics.counters import counter_names, counter_value, reset_counters
from torchport.metrics.timers import reset_timers, timer_names, timer_summary

ReportSection = Callable[[], str]
"""Gives lines for the report; ``""`` when there is nothing to say."""
Figures = Callable[[], Mapping[str, float]]
"""Gives figures for the snapshot, by name."""

_PERCENTS = (1, 5, 10, 20, 50, 80, 90, 95, 99)
_F = TypeVar("_F", bound=Callable[[], object])

# Lists, not sets: the report has the sections in the order of registration.
_sections: list[ReportSection] = []
_figures: list[Figures] = []


def register_report_section(fn: ReportSection) -> ReportSection:
    """Adds what ``fn`` returns to every report; returns ``fn``, so that it can be used as a decorator.

    This is how the active backend's ``create_metric_report()`` gets into the report: who knows the backend registers a
    function, and this module knows nobody. A function that is registered already is not added again.
    """
    return _register(_sections, fn)


def unregister_report_section(fn: ReportSection) -> None:
    """Takes ``fn`` out of the report; nothing happens when it is not in it."""
    _unregister(_sections, fn)


def register_figures(fn: Figures) -> Figures:
    """Adds the figures that ``fn`` returns to every snapshot; see :func:`register_report_section`."""
    return _register(_figures, fn)


def unregister_figures(fn: Figures) -> None:
    """Takes the figures of ``fn`` out of the snapshot; nothing happens when they are not in it."""
    _unregister(_figures, fn)


def _register(registered: list[_F], fn: _F) -> _F:
    if fn not in registered:
        registered.append(fn)
    return fn


def _unregister(registered: list[_F], fn: _F) -> None:
    if fn in registered:
        registered.remove(fn)


def report(extra_lines: str = "") -> str:
    """Every timer, every counter and every registered section, as text.

    Args:
        extra_lines: put at the end, as they are.

    A registered section that raises does not spoil the report: its place says what it raised.
    """
    blocks = [_timer_text(name) for name in timer_names()]
    blocks += [f"Counter: {name}\n  Value: {counter_value(name)}" for name in counter_names()]
    for section in _sections.copy():
        try:
            blocks.append(section())
        except Exception as error:  # noqa: BLE001  (a stranger's code; the report keeps the reason)
            blocks.append(f"Section {_full_name(section)}: failed with {type(error).__name__}: {error}")
    blocks.append(extra_lines)
    lines = [block.rstrip("\n") for block in blocks if block.strip()]
    return "\n".join(lines) + "\n" if lines else ""


def snapshot() -> dict[str, int | float]:
    """Every figure by name, as of now: a copy that later events do not change.

    Counters stand under their names, a timer as ``name.count``, ``name.total_s``, ``name.min_s``, ``name.max_s`` and
    ``name.p50_s``; then the figures that were registered.

    Raises:
        RuntimeError: a function that was registered for its figures raised; the cause says what.
    """
    figures: dict[str, int | float] = {name: counter_value(name) for name in counter_names()}
    for name in timer_names():
        times = timer_summary(name)
        figures |= {
            f"{name}.count": times.count,
            f"{name}.total_s": times.total_s,
            f"{name}.min_s": times.min_s,
            f"{name}.max_s": times.max_s,
            f"{name}.p50_s": times.percentile_s(50),
        }
    for fn in _figures.copy():
        try:
            figures.update(fn())
        except Exception as error:
            raise RuntimeError(f"snapshot: the figures of {_full_name(fn)} failed: {error}") from error
    return figures


def reset() -> None:
    """Sets every counter to 0 and forgets every time. Objects that hot code holds stay valid; sections stay too."""
    reset_counters()
    reset_timers()


def _full_name(fn: Callable[[], object]) -> str:
    name = getattr(fn, "__qualname__", None) or repr(fn)
    return f"{getattr(fn, '__module__', '?')}.{name}"


def _timer_text(name: str) -> str:
    times = timer_summary(name)
    percentiles = "; ".join(f"{p}%={_duration(times.percentile_s(p))}" for p in _PERCENTS)
    return (
        f"Metric: {name}\n"
        f"  TotalSamples: {times.count}\n"
        f"  Accumulator: {_duration(times.total_s)}\n"
        f"  Mean: {_duration(times.mean_s)}\n"
        f"  Percentiles: {percentiles}"
    )


def _duration(seconds: float) -> str:
    """``1h02m03s004ms005.678us``: the units from the largest that is not 0, down to microseconds."""
    whole_us, rest_ns = divmod(round(seconds * 1e9), 1000)
    ms, us = divmod(whole_us, 1000)
    s, ms = divmod(ms, 1000)
    m, s = divmod(s, 60)
    h, m = divmod(m, 60)
    text = ""
    for value, unit, digits in ((h, "h", 2), (m, "m", 2), (s, "s", 2), (ms, "ms", 3)):
        if text or value:
            text += f"{value:0{digits}d}{unit}" if text else f"{value}{unit}"
    last = f"{us}.{rest_ns:03d}us"
    return text + (last.rjust(9, "0") if text else last)
