"""Compares PyTorch's modules, optimizers and schedulers on the lazy device with the CPU: a command.

::

    python tests/sweeps/training.py --write docs/support      # everything, and the pages
    python tests/sweeps/training.py modules                   # one suite: modules, optimizers, schedulers
    python tests/sweeps/training.py optimizers --only Adam,SGD --mode foreach fused

It ends with 1 if anything is not as on the CPU that ``suites.py`` does not list, or is that it lists.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sweeps.opinfo import prepare
from sweeps.records import OpResult
from sweeps.suites import SUITES, Suite, SuiteSweep
from sweeps.sweep import run_sweep
from sweeps.table import Run
from sweeps.training_page import render_page

EVERY_SAMPLE = 10_000


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = argparse.ArgumentParser(
        description="Compares modules, optimizers and schedulers on the lazy device with the CPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)}; all of them if none is named")
    p.add_argument("--only", default="", help="names, separated by commas; else all")
    p.add_argument("--mode", nargs="+", default=[], help="modes of the suite; else all")
    p.add_argument("--dtype", nargs="+", default=[], help="dtypes; else all of the suite")
    p.add_argument("--samples", type=int, default=EVERY_SAMPLE, help="samples of each")
    p.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time")
    p.add_argument("--timeout", type=float, default=600.0, help="seconds for one module or optimizer")
    p.add_argument("--write", type=Path, default=None, metavar="FOLDER", help="write the pages there")
    return p


def main(arguments: list[str]) -> int:
    """Runs the sweeps; returns the exit code."""
    p = parser()
    options = p.parse_args(arguments)
    if unknown := set(options.suites) - set(SUITES):
        p.error(f"{', '.join(sorted(unknown))}: the suites are {', '.join(SUITES)}")
    if options.write and (options.only or options.mode or options.dtype):
        p.error("--write: a page is of a whole suite, so it goes with neither --only nor --mode nor --dtype")
    prepare()
    runs = {name: swept(SUITES[name], options) for name in options.suites or SUITES}
    if options.write:
        pages = {"modules": ("modules",), "optimizers": ("optimizers", "schedulers")}
        for page, suites in pages.items():
            if set(suites) <= set(runs):
                path = options.write / f"{page}.md"
                path.write_text(render_page([(SUITES[s], runs[s]) for s in suites]), encoding="utf-8")
                print(f"wrote {path}")
    return 0 if all(run.verdict.ok for of_suite in runs.values() for run in of_suite) else 1


def swept(suite: Suite, options: argparse.Namespace) -> list[Run]:
    """A run of each mode and dtype of the suite that is asked for and that has subjects."""
    names = set(options.only.split(",")) if options.only else None
    subjects = [s for s in suite.subjects if names is None or s.name in names]
    runs = []
    for mode in [m for m in suite.modes if not options.mode or m in options.mode]:
        for dtype in options.dtype or suite.dtypes:
            sweep = SuiteSweep(mode, dtype, options.samples, options.timeout, options.jobs, suite)
            started = time.monotonic()
            results = run_sweep(sweep, subjects, _show, suite.run)
            command = f"python tests/sweeps/training.py {suite.name} --mode {mode} --dtype {dtype}"
            run = Run(sweep, results, suite.judge(results), time.monotonic() - started, command)
            counts = ", ".join(f"{count} {status}" for status, count in run.counts.items())
            print(f"{suite.name} {run.name}: {counts}; {run.passed_percent:.2f} % pass; {run.seconds:.0f} s")
            for finding in run.verdict.unexpected:
                print(f"  {finding.kind}, for no known reason: {finding.result.name}  {finding.text}")
            for kind, result in run.verdict.needless:
                print(f"  no {kind}, although one is expected: {result.name}; take it out of tests/sweeps/suites.py")
            sys.stdout.flush()
            runs.append(run)
    return runs


def _show(result: OpResult) -> None:
    if result.failed:
        print(f"{result.status:>10}  {result.name}  {result.mode}  {result.dtype}  {result.error}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
