"""What a lowered module costs beyond its payload: a call, loading, and the first call of a process without PyTorch.

python bench/lowered.py
python bench/lowered.py --rounds 20 --json result.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import machine
import numpy
import torch
from torch import nn

import torchport
from torchport.backend.delegates import find_delegate

MICROSECOND = 1e-6
CALLS = 400


class FourInputs(nn.Module):
    """As little as can be computed from four inputs."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return a + b + c + d


class Encoder(nn.Module):
    """A transformer encoder of some 19 MB."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def rounds_of(contenders: dict[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds a call, round by round; every round goes through all contenders, beginning with another one."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for call in contenders.values():
        call()
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            call = contenders[name]
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            found[name].append((time.perf_counter() - begin) / calls)
    return found


def call_overhead(rounds: int) -> dict[str, list[float]]:
    """A lowered call of four inputs, the payload's own call, and the module's."""
    inputs = [torch.ones(4) for _ in range(4)]
    lowered = torchport.to_backend("interpreter", FourInputs(), {"forward": torchport.CompileSpec(tuple(inputs))})
    delegate = find_delegate("interpreter").instance
    (part,) = lowered._methods["forward"].parts.values()
    (handle,) = delegate.compile({"p0": part.payload}, {"p0": None}).values()
    module = FourInputs()
    contenders: dict[str, Callable[[], object]] = {
        "lowered": lambda: lowered(*inputs),
        "payload": lambda: delegate.execute(handle, list(inputs)),
        "module": lambda: module(*inputs),
    }
    with torch.no_grad():
        return rounds_of(contenders, rounds, CALLS)


def load_time(rounds: int, folder: Path) -> dict[str, list[float]]:
    """Loading one model, from files that are in the page cache."""
    module, x = Encoder().eval(), torch.randn(2, 16, 256)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torchport.to_backend("interpreter", module, {"forward": torchport.CompileSpec((x,))}).save(folder / "m.tport")
        torch.export.save(torch.export.export(module, (x,)), folder / "m.pt2")
        torch.jit.trace(module, (x,), check_trace=False).save(str(folder / "m.pt"))
        import torchport_runtime

        return rounds_of(
            {
                "torchport.load": lambda: torchport.load(folder / "m.tport"),
                "torchport_runtime.load": lambda: torchport_runtime.load(folder / "m.tport"),
                "torch.export.load": lambda: torch.export.load(folder / "m.pt2"),
                "torch.jit.load": lambda: torch.jit.load(str(folder / "m.pt")),
            },
            rounds,
            1,
        )


def cold_start(rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of whole processes."""
    path = folder / "m.tport"
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    x = torch.ones(4, 64)
    torchport.to_backend("interpreter", module, {"forward": torchport.CompileSpec((x,))}).save(path)
    numpy.save(folder / "x.npy", x.numpy())
    run = f"import numpy, torchport_runtime as r; r.load({str(path)!r}).forward(numpy.load({str(folder / 'x.npy')!r}))"
    programs = {"runtime: import, load, call": run, "import torch": "import torch", "import numpy": "import numpy"}

    def process(program: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))

    return rounds_of({name: process(program) for name, program in programs.items()}, rounds, 1)


def table(title: str, found: dict[str, list[float]], unit: float, name: str, baseline: str) -> None:
    """Minimum and median of each contender, and both as multiples of the baseline's."""
    print(f"\n{title}\n{'':>30}  {'min ' + name:>10}  {'median':>10}  {'/ ' + baseline:>24}")
    low, middle = min(found[baseline]), statistics.median(found[baseline])
    for contender, seconds in found.items():
        a, b = min(seconds), statistics.median(seconds)
        print(f"{contender:>30}  {a / unit:10.2f}  {b / unit:10.2f}  {a / low:12.2f} {b / middle:11.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(machine.text())
    with tempfile.TemporaryDirectory() as name:
        calls = call_overhead(arguments.rounds)
        loads = load_time(arguments.rounds, Path(name))
        starts = cold_start(arguments.rounds, Path(name))
    table("a call with four inputs", calls, MICROSECOND, "us", "payload")
    overhead = [a - b for a, b in zip(calls["lowered"], calls["payload"], strict=True)]
    least = min(calls["lowered"]) - min(calls["payload"])
    print(f"{'over the payload':>30}  {least / MICROSECOND:10.2f}  {statistics.median(overhead) / MICROSECOND:10.2f}")
    table("loading a transformer encoder of 19 MB", loads, 1e-3, "ms", "torchport.load")
    table("a process", starts, 1e-3, "ms", "import torch")
    if arguments.json:
        content = {"machine": machine.describe(), "calls": calls, "loads": loads, "starts": starts}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
