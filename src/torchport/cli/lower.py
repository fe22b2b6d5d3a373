"""``torchport lower``: an exported program to a backend, as one file."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchport.aot.compile_spec import CompileSpec
from torchport.aot.lowered_module import FALLBACKS
from torchport.aot.to_backend import to_backend
from torchport.cli.problem import CommandError
from torchport.errors import SavedFileError
from torchport_runtime.command.description import describe, size_text
from torchport_runtime.saved_module import open_module

SUMMARY = "lowers an exported program (.pt2) to a backend and saves it as one .tport file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``torchport lower``."""
    parser.add_argument("model", help="a .pt2 file: torch.export.save(torch.export.export(module, args), path)")
    parser.add_argument("--backend", required=True, help="the backend; `torchport backends` lists them")
    parser.add_argument("-o", "--output", required=True, metavar="PATH", help="the .tport file to write")
    parser.add_argument("--options", metavar="JSON", help="the backend's options, as a JSON object")
    parser.add_argument(
        "--no-partition", action="store_true", help="an operator that the backend refuses is an error; all are listed"
    )
    parser.add_argument(
        "--fallback",
        choices=FALLBACKS,
        default="error",
        help="'interpreter' keeps graphs in the file, to run there",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Lower, save, read back, and say what came of it; returns 0."""
    options = _options(arguments.options)
    target = Path(arguments.output)
    if not Path(arguments.model).is_file():
        raise CommandError(f"there is no file {arguments.model}")
    if not target.parent.is_dir():
        raise CommandError(f"--output {target}: there is no folder {target.parent}")
    begin = time.perf_counter()
    with _stage("reading", quiet=arguments.json):
        program = _program(arguments.model)
    with _stage(f"lowering to {arguments.backend}", quiet=arguments.json):
        lowered = to_backend(
            arguments.backend,
            program,
            {"forward": CompileSpec(options=options)} if options else None,
            partition=not arguments.no_partition,
            fallback=arguments.fallback,
        )
    with _stage(f"saving {target}", quiet=arguments.json):
        lowered.save(target)
    about = describe(open_module(target))
    if arguments.json:
        print(json.dumps({"seconds": time.perf_counter() - begin, **about}, indent=2))
    else:
        print(f"{target}: {size_text(about['bytes'])}\n{lowered.explain()}")
    return 0


@contextmanager
def _stage(what: str, quiet: bool) -> Iterator[None]:
    """Says on stderr what is going on, and, when it is over, how long it took."""
    if quiet:
        yield
        return
    begin = time.perf_counter()
    print(f"{what} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    except BaseException:
        print(file=sys.stderr)
        raise
    print(f" {time.perf_counter() - begin:.1f} s", file=sys.stderr)


def _options(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        options = json.loads(text)
    except ValueError as error:
        raise CommandError(f"--options {text}: no JSON: {error}") from error
    if not isinstance(options, dict):
        raise CommandError(f'--options {text}: an object is wanted, such as {{"threads": 2}}')
    return options


def _program(path: str) -> torch.export.ExportedProgram:
    try:
        if not zipfile.is_zipfile(path):  # torch would log pages
            raise ValueError("it is no zip archive")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about itself
            return torch.export.load(path)
    except Exception as error:
        raise SavedFileError(
            f"{path} is no exported program that this torch ({torch.__version__}) can load: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}. Save one with torch.export.save()."
        ) from error
