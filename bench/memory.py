"""Whether memory stays flat: the resident set size of a process that trains for 2,000 steps.

    python bench/memory.py
    python bench/memory.py --model cnn --steps 500 --device cpu

Prints the size after the warm-up and every tenth of the steps, and the growth. The first tenth is warm-up: compiling,
filling caches, the allocator's first pages.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
from pathlib import Path
from typing import Any

import machine
import torch
from workloads import WORKLOADS, Training

MEBIBYTE = 2**20


def resident_bytes() -> int:
    """The resident set size of this process now; its peak where the system does not tell (not Linux)."""
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(model: str, steps: int, device: str, read_every: int) -> dict[str, Any]:
    """Train, and note (step, resident bytes) ten times; the loss is read every ``read_every`` steps."""
    training = Training(model, device)
    samples = []
    loss = training.step()
    for step in range(1, steps + 1):
        loss = training.step()
        if step % read_every == 0:
            loss.item()
        if step % max(1, steps // 10) == 0:
            loss.item()  # nothing is under way while the size is taken
            gc.collect()
            samples.append((step, resident_bytes()))
    first, last = samples[0][1], samples[-1][1]
    return {"samples": samples, "first_bytes": first, "last_bytes": last, "growth_bytes": last - first}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=WORKLOADS, default="mlp", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--device", default="port", help="default: %(default)s")
    parser.add_argument("--read-every", type=int, default=50, help="read the loss that often; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.device not in ("cpu", "cuda"):
        import torchport  # noqa: F401  # registers the device
    print(machine.text())
    figures = measure(arguments.model, arguments.steps, arguments.device, arguments.read_every)
    print(f"\n{arguments.model} on {arguments.device}, {arguments.steps} steps")
    for step, size in figures["samples"]:
        print(f"  step {step:>6}  {size / MEBIBYTE:8.1f} MiB")
    growth, first, last = (figures[f"{key}_bytes"] / MEBIBYTE for key in ("growth", "first", "last"))
    print(f"first {first:.1f} MiB, last {last:.1f} MiB, growth {growth:+.1f} MiB")
    if arguments.json:
        settings = {"model": arguments.model, "steps": arguments.steps, "device": arguments.device}
        content = {"machine": machine.describe(), "settings": settings, **figures}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
