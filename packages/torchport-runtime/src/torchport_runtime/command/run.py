"""``run``: one call of a method, with inputs from files."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from torchport_runtime.command.leaves import call_arguments, flat_results
from torchport_runtime.command.values import read_inputs, summary, write_results
from torchport_runtime.errors import InvalidArgumentError
from torchport_runtime.manifest import Method
from torchport_runtime.saved_module import open_module

SUMMARY = "calls a method of a saved module with arrays from files"

Caller = Callable[[str, "str | None", str], Callable[..., Any]]
"""From a file, what to do about a missing backend, and a method's name to the method, in and out in numpy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("model", help="a .tport file")
    parser.add_argument("--method", help="the method; default: forward, or the only one")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="NAME=array.npy, NAME=arrays.npz:MEMBER, NAME=JSON, or arrays.npz with all names; may be repeated",
    )
    parser.add_argument("--output", metavar="PATH", help="an .npz for the results, or an .npy for a single one")
    parser.add_argument(
        "--fallback", choices=("error", "interpreter"), help="what a missing backend means; default: as it was saved"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, caller: Caller) -> int:
    """Calls the method, writes and prints its results; returns 0."""
    methods = open_module(arguments.model).manifest.methods
    name = _chosen(methods, arguments.method)
    method = methods[name]
    args, kwargs = call_arguments(method, read_inputs(method, arguments.input))
    begin = time.perf_counter()
    function = caller(arguments.model, arguments.fallback, name)
    loaded = time.perf_counter()
    results = flat_results(method, function(*args, **kwargs))
    done = time.perf_counter()
    if arguments.output:
        write_results(arguments.output, results)
    about = {n: summary(v) for n, v in results.items()}
    if arguments.json:
        seconds = {"load": loaded - begin, "call": done - loaded}
        print(json.dumps({"method": name, "results": about, "seconds": seconds, "output": arguments.output}, indent=2))
        return 0
    for result, found in about.items():
        print(f"{result}: " + _words(found))
    if arguments.output:
        print(f"wrote {arguments.output}")
    return 0


def _chosen(methods: Mapping[str, Method], asked: str | None) -> str:
    if asked is not None and asked in methods:
        return asked
    if asked is None and ("forward" in methods or len(methods) == 1):
        return "forward" if "forward" in methods else next(iter(methods))
    what = f"there is no method {asked!r}" if asked else "there are several methods"
    raise InvalidArgumentError(f"{what}: --method is one of {', '.join(methods)}")


def _words(found: dict[str, Any]) -> str:
    if "dtype" not in found:
        return str(found["value"])
    text = f"{found['dtype']}[{', '.join(map(str, found['sizes']))}]"
    if "value" in found:
        return f"{text} {found['value']}"
    return f"{text} from {found['min']:.6g} to {found['max']:.6g}" if "min" in found else text
