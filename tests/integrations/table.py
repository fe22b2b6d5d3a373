"""Runs every check of trainers and trained models, and writes what came of it: a command.

::

    python tests/integrations/table.py --write docs/support

It ends with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import torchport
from integrations import hugging_face, lightning_programs, other_trainers, real_weights
from integrations.check import Check, Outcome, run
from torchport.config import settings

COMMAND = "python tests/integrations/table.py --write docs/support"
CHECKS = [
    check for module in (hugging_face, lightning_programs, other_trainers, real_weights) for check in module.CHECKS
]


@dataclass(frozen=True, slots=True)
class Row:
    """A check with what came of it; ``error`` is empty when it passed."""

    check: Check
    outcome: Outcome | None
    error: str


def judged(check: Check) -> Row:
    """The row of a check; an error is kept, so that the others run."""
    try:
        return Row(check, run(check), "")
    except Exception as error:  # noqa: BLE001 - a stranger's program; the table says what it said
        return Row(check, None, f"{type(error).__name__}: {error}".splitlines()[0])


def render(rows: list[Row], seconds: float) -> str:
    """The page."""
    packages = sorted({name for row in rows for name in row.check.library})
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    passed = sum(not row.error for row in rows)
    lines = [
        "# Trainers and trained models: the device against the CPU",
        "",
        "Generated from a run; do not edit. Programs that use a trainer, or a model with the weights that its authors",
        "trained, once on the CPU and once on the device; [trainers.md](../trainers.md) has them as code to copy.",
        "Compared are all losses, metrics, predictions and weights that a program returns. *Change* is what a program",
        "changes that was written for another device, besides the device's name. The difference is the largest",
        "absolute one of all numbers; the tolerance is that of `torch.testing.assert_close` where none is named.",
        "",
        f"- Date: {datetime.datetime.now(tz=datetime.UTC).date().isoformat()}",
        f"- Versions: torchport {torchport.__version__}, torch {torch.__version__}, {versions}, "
        f"Python {platform.python_version()}",
        f"- Machine: {platform.system()} {platform.machine()}, one thread; backend: interpreter",
        f"- Command: `{COMMAND}`",
        f"- Duration: {seconds:.0f} s",
        f"- Programs: {len(rows)}, of which {passed} pass",
        "",
        "| packages | program | change | numbers | difference | ran eagerly | result |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        o = row.outcome
        figures = ("–",) * 3
        if o is not None:
            eager = ", ".join(f"{name} ×{count}" for name, count in o.fallbacks.items())
            figures = (str(o.numbers), f"{o.difference:.1g}", eager or "nothing")
        cells = (", ".join(row.check.library), row.check.title, row.check.change, *figures, row.error or "passes")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="writes the page integrations.md there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    settings.cache_dir = "off"  # what is compared is compiled here and now
    started = time.monotonic()
    rows = []
    for check in CHECKS:
        rows.append(judged(check))
        print(f"{'FAILS ' + rows[-1].error if rows[-1].error else 'passes'}: {check.title}", flush=True)
    page = render(rows, time.monotonic() - started)
    if options.write is not None:
        (options.write / "integrations.md").write_text(page, encoding="utf-8")
    return int(any(row.error for row in rows))


if __name__ == "__main__":
    sys.exit(main())
