"""``torchport conformance``: the laws of the contract, tried on a backend, and the table of what it does."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import torchport
from torchport.cli.problem import FAILED, INTERRUPTED, CommandError, require_packages
from torchport.conformance.case import Case, Result, Status
from torchport.conformance.catalogue import Choice, all_cases
from torchport.conformance.expected import expected_failures
from torchport.conformance.report import Report, setting_of
from torchport.conformance.running import run as run_cases
from torchport.conformance.subject import Subject
from torchport.conformance.table import write_table
from torchport.errors import BackendNotAvailableError

SUMMARY = "try the laws of the contract on a backend, and write the table of what it supports"
PACKAGES = {"expecttest": "expecttest"}
"""What PyTorch's database of operators needs and does not bring."""
_PAGES = Path("docs/support/backends")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``torchport conformance``."""
    parser.add_argument("name", metavar="NAME", help="the backend")
    parser.add_argument("--quick", action="store_true", help="a part that takes a minute where compiling is quick")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="cases by name or family, such as lowering, 'operators.aten.add*'; may be given several times",
    )
    parser.add_argument("--all-operators", action="store_true", help="every operator of OpInfo, not core ATen only")
    parser.add_argument("--samples", type=int, metavar="N", help="calls of each operator and dtype")
    parser.add_argument("--import", dest="module", metavar="MODULE", help="import it first: it registers the backend")
    parser.add_argument("--list", action="store_true", help="list the cases with their laws, and run none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help=f"write the support table there; a whole run in a checkout writes {_PAGES}/NAME.md",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the cases, show what was found; returns 1 when one failed, 130 when it was interrupted."""
    require_packages("torchport conformance", PACKAGES)
    if arguments.module is not None:
        _import(arguments.module)
    choice = Choice(arguments.quick, tuple(arguments.only), arguments.all_operators, arguments.samples)
    cases = list(all_cases(choice))
    if not cases:
        raise CommandError(f"no case is called {', '.join(choice.only)}; `torchport conformance NAME --list` has all")
    if arguments.list:
        for case in cases:
            print(f"{case.name}: {case.law}")
        return 0
    subject = Subject(arguments.name)
    if not subject.availability:
        raise BackendNotAvailableError(subject.name, subject.availability.reason)
    report = _report(subject, choice, cases)
    show(report)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report.as_data(), indent=1) + "\n", encoding="utf-8")
    table = arguments.table or _page_of_a_whole_run(report)
    if table is not None and not report.interrupted:
        write_table(report, table)
        print(f"The support table is in {table}.")
    if report.interrupted:
        return INTERRUPTED
    return FAILED if report.failed else 0


def _import(module: str) -> None:
    sys.path.insert(0, "")  # as `python -m` does: a module in the current folder can be named
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise CommandError(f"--import {module}: {error}") from error


def _page_of_a_whole_run(report: Report) -> Path | None:
    whole = report.choice == Choice(all_operators=report.choice.all_operators, samples=report.choice.samples)
    return _PAGES / f"{report.setting.backend}.md" if whole and _PAGES.parent.is_dir() else None


def _report(subject: Subject, choice: Choice, cases: list[Case]) -> Report:
    results: list[Result] = []
    interrupted = False
    # Sums are split by the number of threads, so the CPU's results would depend on the machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _progress(len(cases)) as (starting, ended):
            for result in run_cases(subject, cases, expected_failures(subject.owner), starting):
                results.append(result)
                ended(result)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        torch.set_num_threads(threads)
    return Report(setting_of(subject, torchport.__version__), choice, results, interrupted)


def show(report: Report) -> None:
    """Print what failed, then the figures of each family."""
    for result in report.failed:
        print(f"{str(result.status).upper()}  {result.case.name}")
        print(f"      law: {result.case.law}")
        print(f"      {result.text}")
    if report.failed:
        print()
    width = max((len(family) for family in report.families), default=0)
    for family in report.families:
        counts = report.counts(family)
        told = [f"{counts[status]} {status}" for status in Status if counts[status]]
        print(f"{family:<{width}}  {', '.join(told)}")
    share = report.share_of_core()
    if share.total:
        print(
            f"\nCore ATen: {share.right} of {share.total} operators are right ({share.percent:.1f} %), "
            f"{share.refused} refused with a reason, {share.wrong} wrong."
        )
    if report.interrupted:
        print("\nInterrupted: these are the cases that had ended.")


@contextlib.contextmanager
def _progress(count: int) -> Iterator[tuple[Callable[[Case], None], Callable[[Result], None]]]:
    """What is called before and after each case: a bar on stderr, or a line a hundred cases where rich is missing."""
    if importlib.util.find_spec("rich") is None or not sys.stderr.isatty():
        with _plain_progress(count) as functions:
            yield functions
        return
    module = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = (*module.Progress.get_default_columns()[:2], module.MofNCompleteColumn(), module.TimeElapsedColumn())
    with module.Progress(*columns, console=console, refresh_per_second=4) as progress:
        task = progress.add_task("", total=count)

        def ended(result: Result) -> None:
            progress.advance(task)
            if result.failed:
                console.print(f"[red]{result.status}[/red] {result.case.name}", highlight=False)

        yield lambda case: progress.update(task, description=case.name[:48].replace("[", "\\[")), ended


@contextlib.contextmanager
def _plain_progress(count: int) -> Iterator[tuple[Callable[[Case], None], Callable[[Result], None]]]:
    done = 0

    def ended(result: Result) -> None:
        nonlocal done
        done += 1
        if result.failed:
            print(f"{result.status}: {result.case.name}", file=sys.stderr)
        if done % 100 == 0:
            print(f"{done} of {count} cases", file=sys.stderr, flush=True)

    yield lambda case: None, ended
