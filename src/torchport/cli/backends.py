"""``torchport backends``: what can run graphs here, and why the rest cannot."""

from __future__ import annotations

import argparse
import dataclasses
import json

from torchport.backend.registering import backends as known_backends

SUMMARY = "each backend: PASS with its version, or the reason and the remedy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``torchport backends``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List the backends by name; returns 0, since a backend that is not installed is no failure."""
    found = dict(sorted(known_backends().items()))
    if arguments.json:
        print(json.dumps({name: dataclasses.asdict(availability) for name, availability in found.items()}, indent=2))
        return 0
    width = max((len(name) for name in found), default=0)
    for name, availability in found.items():
        if availability.available:
            print(f"PASS  {name:<{width}}  {availability.version or 'no version stated'}")
            able = [
                field.replace("_", " ") for field, on in dataclasses.asdict(availability.capabilities).items() if on
            ]
            print(f"      {'':<{width}}  {', '.join(able) or 'nothing beyond the minimum'}")
        else:
            first, *rest = availability.reason.splitlines() or ["no reason given"]
            print(f" --   {name:<{width}}  {first}")
            for line in rest:
                print(f"      {'':<{width}}  {line}")
    if not found:
        print("No backend is registered. Install torchport itself (`pip install -e .`): its entry points name them.")
    return 0
