"""``torchport-runtime``: the commands of a machine without PyTorch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from torchport_runtime.command import inspect, run
from torchport_runtime.errors import BackendError, ExecutionError, TorchportError
from torchport_runtime.program import load

DONE, FAILED, USAGE_PROBLEM, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; 0: done, 1: it failed while it ran, 2: it cannot run as it was asked for, 130: interrupted."""
    parser = argparse.ArgumentParser(
        prog="torchport-runtime", description="Runs modules that torchport has lowered and saved, without PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"torchport-runtime {version('torchport-runtime')}")
    commands = parser.add_subparsers(dest="command", required=True)
    run.add_arguments(commands.add_parser("run", help=run.SUMMARY, description=run.SUMMARY))
    inspect.add_arguments(commands.add_parser("inspect", help=inspect.SUMMARY, description=inspect.SUMMARY))
    arguments = parser.parse_args(argv)
    try:
        code = run.run(arguments, _caller) if arguments.command == "run" else inspect.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed once more at exit
        return FAILED
    except KeyboardInterrupt:
        return _complain(arguments.command, "interrupted", INTERRUPTED)
    except ExecutionError as error:
        return _complain(arguments.command, str(error), FAILED)
    except (TorchportError, OSError) as error:
        kind = "" if isinstance(error, BackendError) else f"{type(error).__name__}: "
        return _complain(arguments.command, f"{kind}{error}", USAGE_PROBLEM)


def _caller(path: str, fallback: str | None, method: str) -> Callable[..., Any]:
    return load(path, fallback)[method]


def _complain(command: str, message: str, code: int) -> int:
    print(f"torchport-runtime {command}: {message}", file=sys.stderr)
    return code
