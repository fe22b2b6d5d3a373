"""Spoils valid files at random: each loads and computes, or raises one of our errors.

    python tests/runtime/fuzz.py --mutants 50000 --seed 0

Run from the folder of the repository. It prints what the errors were, and exits with 1 at the first mutant that breaks
the rule, which it leaves in the folder.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from aot.subjects import Blocks, Cache, Nested, Tied, spec_of
from runtime.files import members_of, mutate, write_members
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.errors import TorchportError

MEMORY_BOUND_BYTES = 1 << 30
"""What loading may take beyond what the process had."""


def valid_files(folder: Path) -> list[Path]:
    """Files of all kinds: state, two methods, nested results, dynamic sizes, fallback graphs."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    tokens = torch.randint(0, 50, (5,))
    lowered = [
        to_backend("interpreter", Blocks().eval(), spec_of(torch.randn(3, 6)), fallback="interpreter"),
        to_backend("interpreter", Cache().eval(), spec_of(torch.randn(4))),
        to_backend("null", Tied().eval(), {"forward": CompileSpec((tokens,)), "encode": CompileSpec((tokens,))}),
        to_backend(
            "interpreter",
            Nested().eval(),
            {"forward": CompileSpec((torch.randn(3, 4),), {"scale": 3.0}, {"x": {0: batch}, "scale": None})},
        ),
    ]
    paths = []
    for i, module in enumerate(lowered):
        paths.append(folder / f"valid{i}.tport")
        module.save(paths[-1])
    return paths


def check_mutants(folder: Path, count: int, seed: int) -> Counter[str]:
    """Checks that many mutants; what became of them, by kind of error.

    Raises:
        AssertionError: one broke the rule; its file is ``mutant.tport`` in the folder.
    """
    draw = random.Random(seed)
    files = [(members_of(p), p.read_bytes()) for p in valid_files(folder)]
    outside = set(folder.parent.iterdir())
    outcomes: Counter[str] = Counter()
    path = folder / "mutant.tport"
    for i in range(count):
        members, raw = draw.choice(files)
        spoilt, content, right = mutate(members, raw, draw)
        if spoilt is None:
            path.write_bytes(content)
        else:
            try:
                write_members(path, spoilt, right)
            except TorchportError:
                outcomes["not written"] += 1
                continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(path)
            outcomes["loads"] += 1
        except TorchportError as error:
            outcomes[type(error).__name__] += 1
        except BaseException as error:
            raise AssertionError(f"mutant {i} of seed {seed}: {type(error).__name__}: {error}") from error
    assert set(folder.parent.iterdir()) == outside, "something was written outside of the folder"
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "files"
        folder.mkdir()
        valid_files(folder)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BOUND_BYTES,) * 2)
        for outcome, count in check_mutants(folder, arguments.mutants, arguments.seed).most_common():
            print(f"{count:8}  {outcome}")


if __name__ == "__main__":
    main()
