"""Writes what the sweeps of modules, optimizers and schedulers found as pages of ``docs/support``."""

from __future__ import annotations

import platform
from collections import Counter

import torch

import torchport
from sweeps.records import Status
from sweeps.suites import Suite
from sweeps.table import Run, _cell, _machine, _section, _today

TEXTS = {
    "modules": (
        "Every `ModuleInfo` of PyTorch's own test database, with all of its inputs, and the modules of `torch.nn` that "
        "it leaves out, on the device (with the "
        "interpreter backend) and on the CPU. Compared are the output, parameters and buffers after the forward, the "
        "gradients of inputs and parameters, the output where nothing is differentiated, the state saved from the "
        "device and loaded on the CPU, and loaded back on the device, with the output and the state after a further "
        "forward; of each, values, metadata and layout."
    ),
    "optimizers": (
        "Every `OptimizerInfo` of PyTorch's own test database, with all of its inputs: ten steps, and the last five "
        "once more, from parameters and an optimizer's state that were saved after the fifth and loaded into fresh "
        "ones. Compared with the CPU are losses, parameters and state of both; after the third step, and after "
        "loading, nothing may be compiled. (The CPU is put on PyTorch's lists of devices that have capturable "
        "optimizers, and whose default is foreach.)"
    ),
    "schedulers": (
        "Every scheduler of `torch.optim.lr_scheduler`, and `swa_utils.SWALR`: ten steps, scheduler and optimizer "
        "saved and loaded after the fifth. Compared are losses, learning rates and parameters; after the third step "
        "nothing may be compiled."
    ),
}
COLUMNS = (
    "dtype",
    "all",
    "as on the CPU",
    "nothing compiled late",
    "compiled after loading",
    "with fallbacks",
    "no usable input",
    "inputs run",
    "seconds",
)


def render_page(suites: list[tuple[Suite, list[Run]]]) -> str:
    """The page of these suites."""
    title = " and ".join(suite.name for suite, _ in suites)
    lines = [
        f"# {title.capitalize()}: the device against the CPU",
        "",
        "Generated from runs of `tests/sweeps/training.py`; do not edit.",
        "",
        f"- Date: {_today()}",
        f"- Versions: torchport {torchport.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        f"- Machine: {_machine()}, {suites[0][1][0].sweep.jobs} processes at a time",
        f"- Command: `python tests/sweeps/training.py {' '.join(s.name for s, _ in suites)} --write docs/support`",
        "",
    ]
    for suite, runs in suites:
        _suite(lines, suite, runs)
    return "\n".join(lines).rstrip("\n") + "\n"


def _suite(lines: list[str], suite: Suite, runs: list[Run]) -> None:
    lines += [f"## {suite.name.capitalize()}", "", TEXTS[suite.name], ""]
    lines += [f"| {suite.name} | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for run in runs:
        if not run.results:
            continue
        kinds = Counter(f.kind for f in run.verdict.findings)
        row = (
            suite.modes[run.sweep.mode],
            run.sweep.dtype,
            len(run.results),
            # The status of what is equal to the CPU in everything, and compiled after the third step.
            run.counts.get(Status.PASS, 0) + run.counts.get(Status.COMPILES, 0),
            run.counts.get(Status.PASS, 0),
            kinds["reloading"],
            kinds["fallback"],
            run.counts.get(Status.SKIP, 0),
            sum(s.status is not Status.SKIP for r in run.results for s in r.samples),
            f"{run.seconds:.0f}",
        )
        lines.append(f"| {' | '.join(_cell(str(c)) for c in row)} |")
    lines.append("")
    # One line for the same thing in several modes and dtypes.
    found: dict[tuple[str, str, str], list[str]] = {}
    texts: dict[tuple[str, str, str], str] = {}
    for run in runs:
        for f in run.verdict.findings:
            key = (f.result.name, f.kind, f.reason)
            found.setdefault(key, []).append(run.name)
            texts.setdefault(key, f.text)
    _section(
        lines,
        f"What is not as on the CPU in {suite.name}",
        ("name", "kind", "what", "in", "reason"),
        [(k[0], k[1], texts[k], ", ".join(names), k[2] or "**none: a fault**") for k, names in sorted(found.items())],
    )
    rounded = sorted({(r.name, run.name, r.rounding) for run in runs for r in run.results if r.rounding})
    _section(
        lines,
        f"Where the CPU is no nearer to the exact result than the device in {suite.name}",
        ("name", "in", "root mean square of the error"),
        rounded,
    )
    refused: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for result in run.results:
            by_error: dict[str, list[str]] = {}
            for sample in result.samples:
                if sample.status is Status.SKIP:
                    by_error.setdefault(sample.error, []).append(str(sample.index))
            for error, indices in by_error.items():
                refused.setdefault((result.name, error), []).append(f"{run.name} ({', '.join(indices)})")
    _section(
        lines,
        f"Inputs that the CPU itself refuses in {suite.name}",
        ("name", "CPU's error", "in (which inputs)"),
        [(name, error, ", ".join(where)) for (name, error), where in sorted(refused.items())],
    )
