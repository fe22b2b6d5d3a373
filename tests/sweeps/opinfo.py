"""Compares every operator of PyTorch's OpInfo on the lazy device with the CPU: a command.

::

    python tests/sweeps/opinfo.py --everything --write docs/support         # every sweep, and its tables
    python tests/sweeps/opinfo.py --all --mode fwd bwd --dtype float32      # every operator
    python tests/sweeps/opinfo.py --ops linalg.eigh,stft                    # some
    python tests/sweeps/opinfo.py                                           # the choice that CI runs

It ends with 1 if anything is not as on the CPU that ``expected.py`` does not list, or is that it lists.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import torchport
from sweeps.expected import judge
from sweeps.modes import MODES
from sweeps.records import OpResult
from sweeps.sweep import EVERYTHING, Sweep, all_operators, named_operators, run_sweep, sampled_operators
from sweeps.table import Run, write_pages
from torchport.config import settings

CI_OPERATORS = 60
# What the first operations import; in the parent, so that no child spends its time on it.
PRELOADED = ("torch._decomp", "torch._meta_registrations", "torch._refs", "torch._subclasses.fake_tensor")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = argparse.ArgumentParser(
        description="Compares operators on the lazy device with the CPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--mode", nargs="+", choices=list(MODES), default=["fwd"], help="how operators are called")
    p.add_argument("--dtype", nargs="+", default=["float32"], help="dtypes, as float32")
    which = p.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="every operator; else the choice that CI runs")
    which.add_argument("--everything", action="store_true", help="every operator in every mode and dtype")
    which.add_argument("--ops", default="", help="names, separated by commas")
    p.add_argument("--samples", type=int, default=5, help="samples of each operator")
    p.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time")
    p.add_argument("--timeout", type=float, default=120.0, help="seconds for one operator")
    p.add_argument("--write", type=Path, default=None, metavar="FOLDER", help="write the tables there")
    return p


def main(arguments: list[str]) -> int:
    """Runs the sweeps; returns the exit code."""
    p = parser()
    options = p.parse_args(arguments)
    for name in options.dtype:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            p.error(f"--dtype {name}: torch has no such dtype; one is written as float32, int64, complex64")
    try:
        operators = named_operators(options.ops.split(",")) if options.ops else None
    except ValueError as error:
        p.error(f"--ops: {error}")
    whole = options.all or options.everything
    if operators is None:
        operators = all_operators() if whole else sampled_operators(CI_OPERATORS)
    prepare()
    ok = True
    sweeps = EVERYTHING if options.everything else dict.fromkeys(options.mode, options.dtype)
    for mode, dtype in [(mode, dtype) for mode, dtypes in sweeps.items() for dtype in dtypes]:
        sweep = Sweep(mode, dtype, options.samples, options.timeout, options.jobs)
        started = time.monotonic()
        results = run_sweep(sweep, operators, _show)
        which = f"--ops {options.ops}" if options.ops else "--all" if whole else ""
        command = f"python tests/sweeps/opinfo.py {which} --mode {mode} --dtype {dtype}"
        command += f" --samples {options.samples} --jobs {options.jobs}"
        run = Run(sweep, results, judge(results), time.monotonic() - started, command)
        ok &= run.verdict.ok
        _show_run(run)
        if options.write:
            print(f"wrote {write_pages(run, options.write)}")
    return 0 if ok else 1


def prepare() -> None:
    """Makes children cheap and alike: one thread each, and everything imported before they are forked."""
    torch.set_num_threads(1)
    torchport.backends()
    settings.cache_dir = "off"  # a program that an earlier run has left on the disk would hide a compile
    for name in PRELOADED:
        importlib.import_module(name)
    # A collection in a child would write to, and so copy, every page that holds an object of the parent's.
    gc.collect()
    gc.freeze()


def _show(result: OpResult) -> None:
    if result.failed:
        print(f"{result.status:>10}  {result.name}  {result.dtype}  {result.error}", flush=True)


def _show_run(run: Run) -> None:
    counts = ", ".join(f"{count} {status}" for status, count in run.counts.items())
    print(f"{run.name}: {counts}; {run.passed_percent:.2f} % pass; {run.seconds:.0f} s")
    for finding in run.verdict.findings:
        if finding.kind != "failure":
            print(
                f"  {finding.kind:<9} {finding.result.name}  {finding.text}{'' if finding.reason else '  (no reason)'}"
            )
    for result in run.results:
        if result.rounding:
            print(f"  rounding  {result.name}  {result.rounding}")
        if any(not s.same_random for s in result.samples):
            print(f"  random    {result.name}")
    for kind, result in run.verdict.needless:
        print(f"  no {kind}, although one is expected: {result.name}; take it out of tests/sweeps/expected.py")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
