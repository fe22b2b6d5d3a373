"""Spoils valid files at random: each loads and gives what the valid one gives, or raises one of our errors.

Some mutants have their checksums made right. Such a file is another program, which may give other results, or raise
what its operators raise when it is called; it has to load, or to raise one of our errors, all the same.

    python tests/runtime/fuzz.py --mutants 50000 --seed 0

Run from the folder of the repository. It prints what the errors were, and exits with 1 at the first mutant that breaks
the rule, which it leaves in the folder.
"""

from __future__ import annotations

import argparse
import datetime
import math
import platform
import random
import resource
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch.utils import _pytree as pytree

import torchport_runtime
from aot.subjects import Blocks, Cache, Nested, Tied, spec_of
from runtime.files import members_of, mutate, write_members
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.errors import TorchportError

MEMORY_BOUND_BYTES = 1 << 30
"""What loading may take beyond what the process had."""


@dataclass(frozen=True)
class Valid:
    """A file that is right, the calls that are made of it, and what they give."""

    path: Path
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]
    results: list[Any]


def valid_files(folder: Path) -> list[Valid]:
    """Files of all kinds: state, two methods, nested results, dynamic sizes, fallback graphs."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    tokens, x, v, n = torch.randint(0, 50, (5,)), torch.randn(3, 6), torch.randn(4), torch.randn(3, 4)
    fallback = to_backend("interpreter", Blocks().eval(), spec_of(x), fallback="interpreter")
    cache = to_backend("interpreter", Cache().eval(), spec_of(v))
    two = {"forward": CompileSpec((tokens,)), "encode": CompileSpec((tokens,))}
    tied = to_backend("interpreter", Tied().eval(), two)
    nested_spec = CompileSpec((n,), {"scale": 3.0}, {"x": {0: batch}, "scale": None})
    nested = to_backend("interpreter", Nested().eval(), {"forward": nested_spec})
    found = []
    for i, (module, calls) in enumerate(
        (
            (fallback, [("forward", (x,), {})]),
            (cache, [("forward", (v,), {}), ("forward", (v + 1,), {})]),
            (tied, [("forward", (tokens,), {}), ("encode", (tokens,), {})]),
            (nested, [("forward", (n,), {"scale": 3.0})]),
        )
    ):
        path = folder / f"valid{i}.tport"
        module.save(path)
        found.append(Valid(path, calls, results_of(load(path), calls)))
    return found


def results_of(module: Any, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
    """What the calls give, with tensors as nested lists."""
    given = calls
    if isinstance(module, torchport_runtime.Program):
        given = [(name, *pytree.tree_map_only(torch.Tensor, lambda t: t.numpy(), (a, k))) for name, a, k in calls]
    results = [getattr(module, name)(*args, **kwargs) for name, args, kwargs in given]
    return [pytree.tree_map(lambda x: x.tolist() if hasattr(x, "tolist") else x, r) for r in results]


READERS = {"torchport": load, "torchport_runtime": torchport_runtime.load}


def outcome_of(reader: str, path: Path, valid: Valid, may_differ: bool) -> str:
    """What becomes of a mutant.

    Raises:
        AssertionError: another exception than ours, or another result than that of the valid file.
    """
    try:
        module = READERS[reader](path)
    except TorchportError as error:
        return type(error).__name__
    try:
        got = results_of(module, valid.calls)
    except Exception as error:
        # A graph that was changed and given the right checksum is a program: its operators say what is wrong with it.
        if not may_differ:
            raise AssertionError(f"a call raised {type(error).__name__}: {error}") from error
        return "loads, as another program, and a call raises"
    if may_differ:
        return "loads, as another program"
    assert close(got, valid.results), "it loads and gives other results"
    return "loads and gives the same"


def close(got: Any, wanted: Any) -> bool:
    """Whether nested numbers are equal but for rounding."""
    a, b = pytree.tree_leaves(got), pytree.tree_leaves(wanted)
    return len(a) == len(b) and all(
        x == y if not isinstance(y, float) else math.isclose(x, y, rel_tol=1e-4, abs_tol=1e-5)
        for x, y in zip(a, b, strict=True)
    )


def check_mutants(folder: Path, count: int, seed: int) -> Counter[str]:
    """Checks that many mutants with both readers; what became of them, by kind.

    Raises:
        AssertionError: one broke the rule; its file is ``mutant.tport`` in the folder.
    """
    draw = random.Random(seed)
    files = [(v, members_of(v.path), v.path.read_bytes()) for v in valid_files(folder)]
    outside = set(folder.parent.iterdir())
    outcomes: Counter[str] = Counter()
    path = folder / "mutant.tport"
    for i in range(count):
        valid, members, raw = draw.choice(files)
        spoilt, content, right = mutate(members, raw, draw)
        # The manifest has the checksums of the others; its own is the archive's.
        may_differ = right or (spoilt is not None and spoilt.get("manifest.json") != members["manifest.json"])
        if spoilt is None:
            path.write_bytes(content)
        else:
            try:
                write_members(path, spoilt, right)
            except TorchportError:
                outcomes["not written"] += 1
                continue
        for reader in READERS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    outcomes[f"{reader}: {outcome_of(reader, path, valid, may_differ)}"] += 1
            except BaseException as error:
                raise AssertionError(f"mutant {i} of seed {seed}, {reader}: {type(error).__name__}: {error}") from error
    assert set(folder.parent.iterdir()) == outside, "something was written outside of the folder"
    return outcomes


def page(outcomes: Counter[str], mutants: int, seed: int) -> str:
    """The run as a page."""
    lines = [
        "# Spoilt files",
        "",
        "Generated from a run; do not edit. Valid `.tport` files of four modules with bytes flipped, cut off, and",
        "members changed, swapped, renamed, removed and grown; in most of the latter the checksums were made right",
        "again. Each mutant is read by torchport and by torchport-runtime: it loads and gives what the valid file",
        "gives, or raises one of torchport's errors, within 1 GiB of address space beyond what the process had. With",
        "right checksums a mutant is another program, which may give other results.",
        "",
        f"    python tests/runtime/fuzz.py --mutants {mutants} --seed {seed} --write docs/support",
        "",
        f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {platform.system()}: {mutants} mutants, none of which broke the rule.",
        "",
        "| what became of them | torchport | torchport-runtime |",
        "|---|---|---|",
    ]
    for kind in dict.fromkeys(name.partition(": ")[2] for name, _ in outcomes.most_common() if ": " in name):
        counts = [outcomes[f"{reader}: {kind}"] for reader in READERS]
        lines.append(f"| {kind} | {counts[0]} | {counts[1]} |")
    lines.append(f"| no file could be made of it | {outcomes['not written']} | {outcomes['not written']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write spoilt_files.md there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "files"
        folder.mkdir()
        valid_files(folder)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BOUND_BYTES,) * 2)
        outcomes = check_mutants(folder, arguments.mutants, arguments.seed)
    for outcome, count in outcomes.most_common():
        print(f"{count:8}  {outcome}")
    if arguments.write:
        text = page(outcomes, arguments.mutants, arguments.seed)
        (arguments.write / "spoilt_files.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
