"""``torchport bench``: runs the benchmarks of the source checkout."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torchport.cli.problem import CommandError

SUMMARY = "measure side by side against what is installed here, in ratios"
BENCHMARKS = ("train_steps", "memory", "import_time", "lowered")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``torchport bench``, as far as they are its own."""
    parser.usage = "%(prog)s [-h] [NAME] [options of the benchmark]"
    parser.epilog = f"The options of a benchmark: torchport bench {BENCHMARKS[0]} --help"
    parser.add_argument(
        "name", nargs="?", choices=BENCHMARKS, default=BENCHMARKS[0], metavar="NAME", help=f"{', '.join(BENCHMARKS)}"
    )


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Parts ``bench [NAME] [options]`` into what argparse reads here and what the benchmark reads.

    argparse.REMAINDER would do it, were it not for options without a name in front: it takes them for its own.
    """
    own = 2 if len(arguments) > 1 and (not arguments[1].startswith("-") or arguments[1] in ("-h", "--help")) else 1
    return list(arguments[:own]), list(arguments[own:])


def run(arguments: argparse.Namespace) -> int:
    """Run one benchmark in a process of its own; returns its exit code."""
    folder = checkout_folder()
    script = folder / f"{arguments.name}.py"
    if not script.is_file():
        raise CommandError(
            f"{script} is not there. The benchmarks are part of the source checkout, not of the installed package: "
            "clone the repository, install it with `pip install -e .`, and run `torchport bench` again."
        )
    return subprocess.run([sys.executable, str(script), *arguments.options], check=False).returncode


def checkout_folder() -> Path:
    """The folder ``bench`` of the checkout that this module lies in, whether it exists or not."""
    return Path(__file__).resolve().parents[3] / "bench"
