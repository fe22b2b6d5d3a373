"""``inspect``: what is in a saved module, as text, as JSON, as a page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from torchport_runtime.command.description import describe, render
from torchport_runtime.command.page import page
from torchport_runtime.errors import SavedFileError
from torchport_runtime.saved_module import open_module

SUMMARY = "what is in a saved module: methods, partitions, sizes, checksums; nothing of it is run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("model", help="a .tport file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="PATH", help="write a page with a drawing of every method")


def run(arguments: argparse.Namespace) -> int:
    """Reads the file, checks all of it, and prints what is in it; returns 0."""
    saved = open_module(arguments.model)
    if arguments.html:
        try:
            Path(arguments.html).write_text(page(saved), encoding="utf-8")
        except OSError as error:
            raise SavedFileError(f"{arguments.html} cannot be written: {error}") from error
    if arguments.json:
        print(json.dumps(describe(saved), indent=2))
    elif arguments.html:
        print(f"wrote {arguments.html}")
    else:
        print(render(describe(saved)))
    return 0
