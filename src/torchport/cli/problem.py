"""What a command says when it cannot go on, and the check for the packages that only some commands need."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

FAILED = 1
USAGE_PROBLEM = 2
INTERRUPTED = 130  # 128 + SIGINT, what a shell reports for a process that Ctrl-C ended


class CommandError(Exception):
    """A command cannot do its job: the message says why and what to do; it is printed without a traceback."""


def require_packages(command: str, needed: Mapping[str, str]) -> None:
    """Raise, with the pip command that helps, unless all packages that a command needs are installed.

    Args:
        command: the command as the user typed it, for the message.
        needed: module name -> name of the distribution that pip installs.

    Raises:
        CommandError: one or more are missing; all of them are listed.
    """
    missing = [distribution for module, distribution in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise CommandError(
            f"{command} needs {', '.join(missing)}, not installed here. Install with:\n"
            f"    pip install {' '.join(missing)}"
        )
