"""Runs all checks of all models, and writes the table of them: a command.

::

    python tests/models/table.py                          # prints what fails
    python tests/models/table.py --models BERT,GPT-2
    python tests/models/table.py --write docs/support     # writes docs/support/models.md

It ends with 1 if a check failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from models.catalogue import SUBJECTS
from models.checks import Outcome, checks_of
from models.pages import first_lines, prepare, provenance, table
from models.subjects import Subject

Found = dict[str, dict[str, Outcome | str]]
"""By model and check: the outcome, or the error."""

COLUMNS: dict[str, Callable[[str], bool]] = {
    "evaluation": lambda check: check in ("evaluation, eager", "evaluation, sdpa"),
    "training": lambda check: check in ("training, eager", "training, sdpa"),
    "checkpointing": lambda check: check == "training, checkpointing",
    "evaluation float16": lambda check: check.startswith("evaluation, float16"),
    "evaluation bfloat16": lambda check: check.startswith("evaluation, bfloat16"),
    "training bfloat16": lambda check: check == "training, bfloat16",
    "autocast float16": lambda check: check.startswith("evaluation, autocast to float16"),
    "autocast bfloat16": lambda check: check.startswith("evaluation, autocast to bfloat16"),
    "training autocast": lambda check: check.startswith("training, autocast"),
    "initialisation": lambda check: check == "initialisation",
    "saving, moving": lambda check: check in ("saving", "moving"),
}

INTRODUCTION = """\
Generated from a run; do not edit. Small models with random weights on the device and on the CPU, made from the same
seed and fed the same batch. What is checked of each, and how, is in `tests/models/checks.py`:

- **evaluation**: all that the model returns, caches too; with eager attention and with `scaled_dot_product_attention`,
  where the model has both (two marks);
- **training**: four steps of AdamW, dropout on: the losses, then all parameters and buffers. Nothing is compiled after
  the third step;
- **checkpointing**: the same with activations recomputed in the backward pass;
- the same with weights in **float16** and **bfloat16**, and under **autocast**;
- **initialisation**: the weights of a model that is made on the device; **saving, moving**: `save_pretrained` (or
  `state_dict`) on the device and `from_pretrained` on the host; to the device and back, `half()` there, tied weights;
- **generation**: the tokens, and that generating the same a third time compiles nothing.

In none of them an operator falls back to eager execution. = equal to the last bit; ≈ within the default tolerances of
`torch.testing.assert_close`, or, where the CPU has kernels of its own that round elsewhere, as accurate as the CPU
against float64; ∅ the CPU refuses it (below); **✗** failed; – the model has no such thing."""

ORACLE = """\
In low precision the CPU is run with the dropout that PyTorch has for accelerators, `native_dropout`: its gradient is
more precise than the CPU's own by a rounding.
"""

GENERATION = """\
How many graphs were compiled for how many tokens, the prompt's included; what a way before it has compiled is found
again."""


def mark(outcome: Outcome | str) -> str:
    """An outcome in one character."""
    if isinstance(outcome, str):
        return "**✗**"
    if "refused" in outcome.note or "not compared" in outcome.note:
        return "∅"
    return "=" if outcome.bitwise else "≈"


def render(found: Found, command: str, seconds: float) -> str:
    """The page."""
    checks = sum(map(len, found.values()))
    failures = [(m, c, o) for m, by_check in found.items() for c, o in by_check.items() if isinstance(o, str)]
    notes = [
        (m, c, o.note)
        for m, by_check in found.items()
        for c, o in by_check.items()
        if isinstance(o, Outcome) and mark(o) == "∅"
    ]
    lines = ["# Models: the device against the CPU", "", INTRODUCTION, "", *provenance(command, seconds)]
    lines += [f"- Checks: {checks}, of which {checks - len(failures)} pass", ""]
    rows = []
    for model, by_check in found.items():
        cells = (" ".join(mark(o) for c, o in by_check.items() if belongs(c)) for belongs in COLUMNS.values())
        rows.append((model, *(c or "–" for c in cells)))
    lines += [*table(("model", *COLUMNS), rows), ORACLE, "## Generation", "", GENERATION, ""]
    ways = list(dict.fromkeys(way for s in SUBJECTS for way in s.generates))
    rows = [
        (model, *(_generated(by_check.get(f"generation, {way}")) for way in ways))
        for model, by_check in found.items()
        if any(c.startswith("generation") for c in by_check)
    ]
    lines += table(("model", *ways), rows)
    if notes:
        lines += ["## Refused by the CPU", "", *table(("model", "check", "its error"), notes)]
    if failures:
        lines += ["## Failures", "", *table(("model", "check", "error"), failures)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _generated(outcome: Outcome | str | None) -> str:
    if isinstance(outcome, Outcome):
        return f"{mark(outcome)} {outcome.note}"
    return "–" if outcome is None else mark(outcome)


def run(subjects: list[Subject]) -> Found:
    """Runs all checks of the models."""
    found: Found = {}
    for subject in subjects:
        results = found[subject.name] = {}
        for name, check in checks_of(subject).items():
            try:
                results[name] = check()
            except Exception as error:  # noqa: BLE001 - of the model or of a check: it goes into the table
                results[name] = first_lines(error)
                print(f"{subject}: {name}: {results[name]}", flush=True)
        print(f"{subject}: {sum(isinstance(o, Outcome) for o in results.values())} of {len(results)}", flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Runs the checks; returns the exit code."""
    p = argparse.ArgumentParser(description="Compares models on the lazy device with the CPU.")
    p.add_argument("--models", default="", help="names, separated by commas; all of them unless given")
    p.add_argument("--write", type=Path, default=None, metavar="FOLDER", help="write models.md there")
    options = p.parse_args(arguments)
    names = options.models.split(",") if options.models else [s.name for s in SUBJECTS]
    unknown = sorted(set(names) - {s.name for s in SUBJECTS})
    if unknown:
        p.error(f"--models: there is no {', '.join(unknown)}; there are {', '.join(s.name for s in SUBJECTS)}")
    prepare()
    started = time.monotonic()
    found = run([s for s in SUBJECTS if s.name in names])
    if options.write:
        page = render(found, "python tests/models/table.py --write docs/support", time.monotonic() - started)
        (options.write / "models.md").write_text(page, encoding="utf-8")
    return int(any(isinstance(o, str) for by_check in found.values() for o in by_check.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
