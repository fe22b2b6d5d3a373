"""Writes what a sweep found as a page of ``docs/support/opinfo``, and the page that sums them up."""

from __future__ import annotations

import datetime
import json
import platform
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

KIND_TITLES = {
    "failure": "Failures",
    "fallback": "Operators that ran a fallback",
    "layout": "Operators with another layout than eager's",
}

Row = dict[str, Any]
"""What the first page holds of one sweep; kept beside it as JSON, so that each sweep can be run by itself."""


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


def _summary(run: Run) -> Row:
    kinds = Counter(f.kind for f in run.verdict.findings)
    return {
        "mode": run.sweep.mode,
        "dtype": run.sweep.dtype,
        "date": _today(),
        "torch": torch.__version__,
        "machine": _machine(),
        "samples": run.sweep.samples,
        "seconds": round(run.seconds),
        "processes": run.sweep.jobs,
        "operators": len(run.results),
        "passed": run.counts.get(Status.PASS, 0),
        "failed": kinds["failure"],
        "without samples": run.counts.get(Status.SKIP, 0),
        "with fallbacks": kinds["fallback"],
        "other layout": kinds["layout"],
        "percent": f"{run.passed_percent:.2f}",
        "findings": [[f.kind, f.result.name, f.text, f.reason] for f in run.verdict.findings],
    }


def render_summary(rows: dict[str, Row]) -> str:
    """The page that lists every sweep in one line, and everything that any of them found."""
    columns = ("operators", "passed", "percent", "failed", "without samples", "with fallbacks", "other layout")
    columns = (*columns, "samples", "seconds", "date", "torch")
    minutes = sum(row["seconds"] for row in rows.values()) / 60
    lines = [
        "# OpInfo: the device against the CPU",
        "",
        "Generated from runs of `tests/sweeps/opinfo.py`; do not edit. Each operator of PyTorch's own test database",
        "is called with the same arguments on the device, with the interpreter backend, and on the CPU. Compared are",
        "values, metadata, layout (strides, storage offsets, conjugate bits), and who shares a storage with whom. All",
        f"of it is run again, in about {minutes:.0f} minutes, with",
        "",
        "    python tests/sweeps/opinfo.py --everything --write docs/support",
        "",
        "An operator passes when all of its samples do, up to as many as the column says. Percentages are of the",
        "operators that have samples; those",
        "without are operators that the CPU itself does not run so, and each page says why.",
        "",
        "| sweep | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    ordered = sorted(rows.items(), key=lambda item: (list(MODE_TITLES).index(item[1]["mode"]), item[0]))
    for name, row in ordered:
        link = f"[{MODE_TITLES[row['mode']]}, {row['dtype']}](opinfo/{name}.md)"
        lines.append(f"| {link} | " + " | ".join(str(row[c]) for c in columns) + " |")
    machines = sorted({f"{row['machine']}, {row['processes']} processes at a time" for row in rows.values()})
    lines += ["", f"Run on: {'; '.join(machines)}.", ""]
    return "\n".join([*lines, *_findings(ordered)]) + "\n"


def _findings(rows: list[tuple[str, Row]]) -> list[str]:
    """A table of what is not as on the CPU, one line for each operator and kind, with the sweeps that found it."""
    sweeps: dict[tuple[str, str, str], list[str]] = {}
    texts: dict[tuple[str, str, str], str] = {}
    for name, row in rows:
        for kind, op, text, reason in row["findings"]:
            key = (kind, op, reason)
            sweeps.setdefault(key, []).append(name)
            texts.setdefault(key, text)
    if not sweeps:
        return ["Nothing is not as on the CPU."]
    lines = ["## What is not as on the CPU", "", "| operator | kind | what | in | reason |", "|---|---|---|---|---|"]
    for key, names in sorted(sweeps.items()):
        kind, op, reason = key
        row = (op, kind, texts[key], ", ".join(names), reason or "**none: a fault**")
        lines.append(f"| {' | '.join(_cell(c) for c in row)} |")
    return lines


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
    for kind, title in KIND_TITLES.items():
        _section(
            lines,
            title,
            ("operator", "dtype", "what", "reason"),
            [(f.result.name, f.result.dtype, f.text, f.reason) for f in verdict.findings if f.kind == kind],
        )
    _section(
        lines,
        "Expected not to be as on the CPU, and are",
        ("operator", "kind"),
        [(r.name, kind) for kind, r in verdict.needless],
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
