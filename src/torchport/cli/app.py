"""The argument parser of ``torchport``, and the way from a command's name to the module that runs it."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torchport.cli import backends, bench, conformance, demo, inspect, lower
from torchport.cli import run as run_command
from torchport.cli.problem import FAILED, INTERRUPTED, USAGE_PROBLEM, CommandError
from torchport.errors import (
    BackendNotAvailableError,
    InvalidArgumentError,
    SavedFileError,
    TorchportError,
    UnknownBackendError,
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its line in ``--help``, its arguments, and the function that runs it."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = {
    "demo": Command(demo.SUMMARY, demo.add_arguments, demo.run),
    "backends": Command(backends.SUMMARY, backends.add_arguments, backends.run),
    "lower": Command(lower.SUMMARY, lower.add_arguments, lower.run),
    "run": Command(run_command.SUMMARY, run_command.add_arguments, run_command.run),
    "inspect": Command(inspect.SUMMARY, inspect.add_arguments, inspect.run),
    "conformance": Command(conformance.SUMMARY, conformance.add_arguments, conformance.run),
    "bench": Command(bench.SUMMARY, bench.add_arguments, bench.run),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    Args:
        argv: the arguments without the program's name; those of the process where not given.

    Returns:
        0: done. 1: a figure missed its goal, or torchport failed. 2: the command cannot run as it was typed, or not
        here. 130: interrupted with Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    if not arguments:
        parser.print_help()
        return USAGE_PROBLEM
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        return _complain(unknown_command(arguments[0]), USAGE_PROBLEM)
    arguments, passed_on = bench.split(arguments) if arguments[0] == "bench" else (arguments, [])
    try:
        parsed = parser.parse_args(arguments, argparse.Namespace(options=passed_on))
    except SystemExit as stop:  # argparse ends the process for --help and for a wrong option; main returns a code
        return stop.code if isinstance(stop.code, int) else USAGE_PROBLEM
    try:
        code = COMMANDS[parsed.command].run(parsed)
        sys.stdout.flush()  # here, where a reader that has gone can still be answered
        return code
    except BrokenPipeError:
        # The reader (such as `head`) has what it wanted. The interpreter flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return _complain(f"torchport {parsed.command}: interrupted", INTERRUPTED)
    except (CommandError, UnknownBackendError, BackendNotAvailableError) as problem:
        return _complain(f"torchport {parsed.command}: {problem}", USAGE_PROBLEM)
    except (SavedFileError, InvalidArgumentError, FileNotFoundError) as problem:
        return _complain(f"torchport {parsed.command}: {type(problem).__name__}: {problem}", USAGE_PROBLEM)
    except TorchportError as problem:
        return _complain(f"torchport {parsed.command}: {type(problem).__name__}: {problem}", FAILED)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="torchport",
        description="Unmodified PyTorch on a lazy device, compiled as one graph and run by a pluggable backend.",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # the default one breaks the line of --version
    )
    parser.add_argument("--version", action="version", version=version_text())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.summary, description=command.summary)
        command.add_arguments(sub)
    return parser


def version_text() -> str:
    """``torchport 0.1.0 (torch 2.13.0, Python 3.11.4)``."""
    try:
        version = importlib.metadata.version("torchport")
    except importlib.metadata.PackageNotFoundError:  # run from the source tree by PYTHONPATH
        version = "(not installed, from a source tree)"
    python = ".".join(str(part) for part in sys.version_info[:3])
    return f"torchport {version} (torch {torch.__version__}, Python {python})"


def unknown_command(name: str) -> str:
    """The message for a command that does not exist: what was typed, the nearest name, and all of them."""
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"torchport: there is no command {name!r}.{hint} The commands are: {', '.join(COMMANDS)}."


def _complain(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code
