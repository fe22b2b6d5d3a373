"""Writes what a sweep found as a page of ``docs/support/opinfo``, and the page that sums them up."""

from __future__ import annotations

import datetime
import json
import platform
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

import torchport
from sweeps.expected import HOST_ARGUMENTS, Verdict
from sweeps.records import WORST_FIRST, OpResult, Status
from sweeps.sweep import Sweep


@dataclass(frozen=True, slots=True)
class Run:
    """A finished sweep.

    Attributes:
        sweep: what was run.
        results: what was found.
        verdict: the same, against what is expected.
        seconds: how long it took.
        command: the command that runs it again.
    """

    sweep: Sweep
    results: list[OpResult]
    verdict: Verdict
    seconds: float
    command: str

    @property
    def name(self) -> str:
        """Mode and dtype, as in the page's name."""
        return f"{self.sweep.mode}-{self.sweep.dtype}"

    @property
    def counts(self) -> dict[Status, int]:
        """How many operators ended in each status that occurs, the worst first."""
        found = Counter(r.status for r in self.results)
        return {status: found[status] for status in WORST_FIRST if found[status]}

    @property
    def passed_percent(self) -> float:
        """The share of operators that pass among those that have samples."""
        ran = [r for r in self.results if r.status is not Status.SKIP]
        return 100 * sum(r.status is Status.PASS for r in ran) / max(len(ran), 1)


MODE_TITLES = {
    "fwd": "forward",
    "bwd": "backward",
    "inplace": "in place",
    "out": "into `out=`",
    "bwdbwd": "second derivatives",
    "jvp": "forward-mode derivatives",
}


def write_pages(run: Run, folder: Path) -> Path:
    """Writes the page of a run into ``folder/opinfo`` and brings ``folder/opinfo.md`` up to date; returns the page."""
    page = folder / "opinfo" / f"{run.name}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(run), encoding="utf-8")
    summary = folder / "opinfo" / "summary.json"
    rows = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
    rows[run.name] = _summary(run)
    summary.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "opinfo.md").write_text(render_summary(rows), encoding="utf-8")
    return page


def _summary(run: Run) -> dict[str, str | int | float]:
    return {
        "mode": run.sweep.mode,
        "dtype": run.sweep.dtype,
        "date": _today(),
        "torch": torch.__version__,
        "samples": run.sweep.samples,
        "operators": len(run.results),
        "passed": run.counts.get(Status.PASS, 0),
        "without samples": run.counts.get(Status.SKIP, 0),
        "expected failures": len(run.verdict.expected_failures),
        "unexpected failures": len(run.verdict.unexpected_failures),
        "with fallbacks": sum(bool(r.fallbacks) for r in run.results),
        "other layout": sum(bool(r.layout) for r in run.results),
        "percent": round(run.passed_percent, 2),
    }


def render_summary(rows: dict[str, dict[str, str | int | float]]) -> str:
    """The page that lists every sweep in one line."""
    columns = ("operators", "passed", "percent", "without samples", "expected failures", "unexpected failures")
    columns = (*columns, "with fallbacks", "other layout", "samples", "date", "torch")
    lines = [
        "# OpInfo: the device against the CPU",
        "",
        "Generated from runs of `tests/sweeps/opinfo.py`; do not edit. Each operator of PyTorch's own test database",
        "is called with the same arguments on the device, with the interpreter backend, and on the CPU. Compared are",
        "values, metadata, layout, and who shares a storage with whom. All of it is run again with",
        "",
        "    python tests/sweeps/opinfo.py --all --dtype float32 --write docs/support \\",
        "        --mode fwd bwd inplace out bwdbwd jvp",
        "    python tests/sweeps/opinfo.py --all --mode fwd --write docs/support \\",
        "        --dtype float64 int64 int32 uint8 bool bfloat16 float16 complex64",
        "    python tests/sweeps/opinfo.py --all --mode bwd --dtype float64 complex64 --write docs/support",
        "",
        "An operator passes when all of its samples do. Percentages are of the operators that have samples.",
        "",
        "| sweep | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for name, row in sorted(rows.items()):
        link = f"[{MODE_TITLES[str(row['mode'])]}, {row['dtype']}](opinfo/{name}.md)"
        lines.append(f"| {link} | " + " | ".join(str(row[c]) for c in columns) + " |")
    return "\n".join(lines) + "\n"


def render(run: Run) -> str:
    """The page of one run."""
    lines = [
        f"# OpInfo, {MODE_TITLES[run.sweep.mode]}, {run.sweep.dtype}",
        "",
        "Generated; do not edit.",
        "",
        f"- Date: {_today()}",
        f"- Versions: torchport {torchport.__version__}, torch {torch.__version__}, numpy {numpy.__version__}, "
        f"Python {platform.python_version()}",
        f"- Machine: {_machine()}",
        f"- Command: `{run.command}`",
        f"- Samples: up to {run.sweep.samples} of each operator, of those that the CPU can run",
        f"- Duration: {run.seconds:.0f} s with {run.sweep.jobs} processes",
        f"- Operators: {len(run.results)}, of which {run.passed_percent:.2f} % pass",
        "",
        "| status | operators |",
        "|---|---|",
        *(f"| {status} | {count} |" for status, count in run.counts.items()),
        "",
    ]
    verdict = run.verdict
    _section(
        lines,
        "Failures",
        ("operator", "dtype", "status", "error"),
        [(r.name, r.dtype, str(r.status), r.error) for r in verdict.unexpected_failures],
    )
    _section(
        lines,
        "Expected failures",
        ("operator", "dtype", "status", "reason"),
        [(r.name, r.dtype, str(r.status), reason) for r, reason in verdict.expected_failures],
    )
    _section(
        lines,
        "Expected failures that pass",
        ("operator", "dtype"),
        [(r.name, r.dtype) for r in verdict.unexpected_passes],
    )
    _section(
        lines,
        "Operators that ran a fallback",
        ("operator", "ran eagerly"),
        [(r.name, ", ".join(f"{k} ×{v}" for k, v in r.fallbacks.items())) for r in run.results if r.fallbacks],
    )
    _section(
        lines,
        "Operators with another layout than eager's",
        ("operator", "difference"),
        [(r.name, r.layout) for r in run.results if r.layout],
    )
    _section(
        lines,
        "Operators with samples on which the CPU is no nearer to the exact result than the device",
        ("operator", "root mean square of the error"),
        [(r.name, r.rounding) for r in run.results if r.rounding],
    )
    _section(
        lines,
        "Random operators that draw other numbers than the CPU",
        ("operator",),
        [(r.name,) for r in run.results if any(not s.same_random for s in r.samples)],
    )
    _section(
        lines,
        "Operators in a dtype of their own",
        ("operator", "dtype"),
        [(r.name, r.dtype) for r in run.results if r.dtype != run.sweep.dtype],
    )
    _section(
        lines,
        "Operators without samples",
        ("operator", "why"),
        [(r.name, r.error) for r in run.results if r.status is Status.SKIP],
    )
    kept = [(r.name, HOST_ARGUMENTS[r.name]) for r in run.results if r.name in HOST_ARGUMENTS]
    _section(lines, "Operators whose arguments stay on the CPU", ("operator", "why"), kept)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(lines: list[str], title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    if not rows:
        lines += [f"{title}: none.", ""]
        return
    lines += [f"## {title}", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    lines += [f"| {' | '.join(_cell(c) for c in row)} |" for row in rows]
    lines.append("")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def _machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if names:
            model = f"{names[0].partition(':')[2].strip()} × {len(names)}"
    return f"{platform.system()} {platform.machine()}, {model}"
