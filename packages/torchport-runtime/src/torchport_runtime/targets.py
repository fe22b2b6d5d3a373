"""Kinds of machines, by name."""

from __future__ import annotations

import platform

from torchport_runtime.errors import TargetMismatchError

ANY = "any"


def this_target() -> str:
    """This machine's kind: ``x86_64-linux``, ``arm64-darwin``, …"""
    return f"{platform.machine().lower()}-{platform.system().lower()}"


def check_target(target: str, path: object) -> None:
    """Accepts a file that was made for this kind of machine, or for any.

    Raises:
        TargetMismatchError: it was made for another.
    """
    if target not in (ANY, this_target()):
        raise TargetMismatchError(
            f"{path} was made for {target}, and this machine is {this_target()}. Lower the module for this target."
        )
