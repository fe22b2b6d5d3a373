"""Random programs, on the CPU and on the device, in any number.

    python tests/programs/run.py --programs 20000 --seed 0 --write docs/support

Every program is drawn by the strategy that the tests use. One that fails is reduced and printed as a test, which can be
pasted into ``test_found_programs.py``; the run goes on, and exits with 1 at its end.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from programs.generator import written
from programs.program import Program, as_test
from programs.reduction import failure_of, reduced

MOST_FAILURES = 20


class Drawn:
    """Draws as hypothesis does, from a generator of its own; ``strategy`` is a range of whole numbers."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def __call__(self, strategy: Any) -> int:
        bounds = strategy.wrapped_strategy if hasattr(strategy, "wrapped_strategy") else strategy
        return self._random.randint(bounds.start, bounds.end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write random_programs.md there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # programs do what PyTorch warns of
    families: Counter[str] = Counter()
    refused = statements = failed = 0
    kinds: Counter[str] = Counter()
    start = time.monotonic()
    for i in range(arguments.programs):
        program: Program = written(Drawn(f"{arguments.seed}:{i}"))
        for statement in program.walk():
            families[f"{statement.family}"] += 1
            statements += 1
            refused += bool(statement.refused)
        kind = failure_of(program)
        if kind:
            failed += 1
            kinds[kind] += 1
            if kinds[kind] == 1:
                print(f"# program {i} of seed {arguments.seed}: {kind}\n{as_test(reduced(program))}", flush=True)
            if failed >= MOST_FAILURES:
                print(f"stopped after {i + 1} programs: {failed} failed")
                break
        if i % 500 == 499:
            print(f"# {i + 1} programs, {failed} failed, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if arguments.write and failed < MOST_FAILURES:
        arguments.write.joinpath("random_programs.md").write_text(
            page(arguments, families, statements, refused, failed), encoding="utf-8"
        )
    print(f"{arguments.programs} programs, {failed} failed")
    sys.exit(failed > 0)


def page(arguments: argparse.Namespace, families: Counter[str], statements: int, refused: int, failed: int) -> str:
    """The run as a page."""
    lines = [
        "# Random programs: the device against the CPU",
        "",
        "Generated from a run; do not edit. Small programs of factories, views, writes, `out=`, indexing, reductions,",
        "random numbers, autograd, reads, barriers and threads run on the CPU and on the device. Afterwards everything",
        "that lives is compared: values, dtypes, layouts, version counters, gradients, who shares a storage with whom,",
        "and the types of the errors of statements that eager PyTorch refuses.",
        "",
        f"    python tests/programs/run.py --programs {arguments.programs} --seed {arguments.seed} --write …",
        "",
        f"{arguments.programs} programs, {statements} statements, {100 * refused / statements:.1f} % of which eager "
        f"PyTorch refuses; {failed} programs failed.",
        f"{datetime.date.today()}, torch {torch.__version__}, {platform.machine()}, {platform.system()}.",
        "",
        "| statements | times |",
        "|---|---|",
        *(f"| {family} | {count} |" for family, count in families.most_common()),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
