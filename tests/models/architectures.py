"""Runs every architecture of transformers that can be made small and fed without knowing it: a command.

::

    python tests/models/architectures.py                          # prints what differs
    python tests/models/architectures.py --names levit,univnet
    python tests/models/architectures.py --write docs/support     # writes docs/support/architectures.md

It takes some ten minutes, and ends with 1 if an architecture gives another result than on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from transformers import AutoModel, PretrainedConfig

from lazy.cases.oracle import D, seed_everything
from models.checks import assert_close, counted
from models.pages import first_lines, prepare, provenance, table
from models.runs import Tensors, moved, on_host, tensors_of
from models.shrinking import architectures, batches, config_of

TIMEOUT_S = 60
LARGEST = 30_000_000
"""Parameters; an architecture that stays larger is left out."""

ILL_CONDITIONED = {
    "levit": "batch norm over the two elements of the batch: differences of roundings grow to the size of the values",
    "hgnet_v2": "activations that explode: gradients of 6e8, which differ by 2e-6 of their size",
}
"""Architectures whose small form cannot be compared in training, and why."""

INTRODUCTION = """\
Generated from a run; do not edit. Every architecture that transformers can make by name, with a small random
configuration, where such a one can be found without knowing the architecture: sizes are set by their usual names, and
it is fed the first of a few batches (text, pictures, sound) that it takes. Compared with the CPU, under the default
tolerances of `torch.testing.assert_close`: all outputs in evaluation; outputs, the mean of their squares and all
gradients in training, dropout on. An operator that fell back to eager execution would be a failure. = equal to the last
bit; ≈ within the tolerances; – the CPU cannot run it so."""


class NotRun(Exception):  # noqa: N818 - no error: there is nothing to compare
    """There is nothing to compare; the message says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an architecture.

    Attributes:
        inputs: what it was fed; empty when it was not run.
        evaluation: a mark, or the error.
        training: the same.
        reason: why it was not run.
    """

    inputs: str = ""
    evaluation: str = "–"
    training: str = "–"
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether the device gave something else than the CPU."""
        return any(len(x) > 1 for x in (self.evaluation, self.training))


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raises TimeoutError in what takes too long."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {TIMEOUT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TIMEOUT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outputs(config: PretrainedConfig, batch: dict[str, torch.Tensor], device: str, training: bool) -> Tensors:
    """All that a model returns; in training, the gradients too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModel.from_config(config)
    model = model.train(training).to(device)
    inputs = moved(batch, device)
    seed_everything()
    # Numbers that are drawn "on the default device" come from the generator that dropout draws from.
    with torch.device(device), torch.set_grad_enabled(training):
        found = tensors_of(model(**inputs))
        if training:
            loss = sum(t.float().square().mean() for t in found.values() if t.is_floating_point() and t.requires_grad)
            loss.backward()  # type: ignore[union-attr]
            found["loss"] = loss  # type: ignore[assignment]
            found |= {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return on_host(found)


def batch_for(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """The first batch that the model takes on the CPU.

    Raises:
        NotRun: it takes none.
    """
    first = ""
    for batch in batches():
        try:
            outputs(config, batch, "cpu", training=False)
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - the model's own: this was no batch for it
            first = first or first_lines(error)
        else:
            return batch
    raise NotRun(f"takes none of the batches; of the first: {first[:100]}")


def prepared(architecture: str) -> tuple[PretrainedConfig, dict[str, torch.Tensor]]:
    """A small configuration and a batch.

    Raises:
        NotRun: there is none.
    """
    try:
        config = config_of(architecture)
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModel.from_config(config).parameters())
    except TimeoutError:
        raise
    except Exception as error:
        # One configuration class after the other is named in some messages.
        kind = first_lines(error).partition(" <class")[0].partition(". ")[0]
        raise NotRun(f"no small one is made: {kind[:100]}") from error
    if size > LARGEST:
        raise NotRun(f"{size:,} parameters when made small")
    return config, batch_for(config)


def compared(config: PretrainedConfig, batch: dict[str, torch.Tensor], training: bool) -> str:
    """A mark, or what is wrong."""
    try:
        wanted = outputs(config, batch, "cpu", training)
    except TimeoutError:
        raise
    except Exception:  # noqa: BLE001 - the model's own: it wants more to be trained
        return "–"
    try:
        outcome = counted(lambda: assert_close(wanted, outputs(config, batch, D, training)))
    except Exception as error:  # noqa: BLE001 - whatever it is: the CPU has a result
        return first_lines(error)
    return "=" if outcome.bitwise else "≈"


def result_of(architecture: str) -> Result:
    """Runs one architecture."""
    try:
        with time_limit():
            config, batch = prepared(architecture)
            evaluation = compared(config, batch, training=False)
        with time_limit():
            if architecture in ILL_CONDITIONED:
                return Result(", ".join(batch), evaluation, "–", ILL_CONDITIONED[architecture])
            return Result(", ".join(batch), evaluation, compared(config, batch, training=True))
    except NotRun as reason:
        return Result(reason=str(reason))
    except TimeoutError as reason:
        return Result(reason=str(reason))


def render(results: dict[str, Result], command: str, seconds: float) -> str:
    """The page."""
    ran = {n: r for n, r in results.items() if r.inputs}
    marks = Counter(m for r in ran.values() for m in (r.evaluation, r.training))
    failures = [(n, r.evaluation, r.training) for n, r in ran.items() if r.failed]
    lines = ["# Architectures of transformers", "", INTRODUCTION, "", *provenance(command, seconds)]
    lines += [
        f"- Architectures: {len(results)}, of which {len(ran)} were run; {len(failures)} differ",
        f"- Comparisons: {marks['=']} equal to the last bit, {marks['≈']} within the tolerances",
        "",
    ]
    if failures:
        lines += ["## Different from the CPU", "", *table(("architecture", "evaluation", "training"), failures)]
    rows = [(n, r.inputs, r.evaluation, r.training) for n, r in ran.items() if not r.failed]
    lines += ["## The same as on the CPU", "", *table(("architecture", "fed", "evaluation", "training"), rows)]
    reasons: dict[str, list[str]] = {}
    for name, result in results.items():
        if result.reason:
            reasons.setdefault(result.reason, []).append(name)
    rest = [(", ".join(names), reason) for reason, names in reasons.items()]
    lines += ["## Not run, or not trained", "", *table(("architectures", "why"), rest)]
    return "\n".join(lines).rstrip("\n") + "\n"


def main(arguments: list[str]) -> int:
    """Runs the architectures; returns the exit code."""
    p = argparse.ArgumentParser(description="Compares architectures of transformers on the device with the CPU.")
    p.add_argument("--names", default="", help="names, separated by commas; all of them unless given")
    p.add_argument("--write", type=Path, default=None, metavar="FOLDER", help="write architectures.md there")
    options = p.parse_args(arguments)
    prepare()
    started = time.monotonic()
    results = {}
    for name in options.names.split(",") if options.names else architectures():
        result = results[name] = result_of(name)
        if result.failed or options.names:
            print(f"{name}: {result}", flush=True)
    if options.write:
        page = render(results, "python tests/models/architectures.py --write docs/support", time.monotonic() - started)
        (options.write / "architectures.md").write_text(page, encoding="utf-8")
    return int(any(r.failed for r in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
