"""What ``import torchport`` adds to ``import torch``: the median over fresh processes.

python bench/import_time.py
python bench/import_time.py --processes 20 --json result.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import machine

PROGRAM = """
import sys, time
start_s = time.perf_counter()
import torch
torch_s = time.perf_counter()
before = set(sys.modules)
import torchport
end_s = time.perf_counter()
print(torch_s - start_s, end_s - torch_s, len(set(sys.modules) - before))
"""


def measure(processes: int) -> dict[str, list[float]]:
    """Seconds of both imports, and the modules that torchport's brought, of each process."""
    result: dict[str, list[float]] = {"torch_s": [], "torchport_s": [], "modules": []}
    for index in range(processes + 1):
        finished = subprocess.run([sys.executable, "-c", PROGRAM], check=True, text=True, stdout=subprocess.PIPE)
        if index:  # the first one fills the file cache and writes the bytecode
            for key, value in zip(result, finished.stdout.split(), strict=True):
                result[key].append(float(value))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    arguments = parser.parse_args()
    print(machine.text())
    figures = measure(arguments.processes)
    print(f"\n{arguments.processes} fresh processes  {'median s':>8}  {'min s':>8}")
    for key, label in (("torch_s", "import torch"), ("torchport_s", "import torchport after it")):
        print(f"{label:>26}  {statistics.median(figures[key]):8.3f}  {min(figures[key]):8.3f}")
    print(f"{'modules it brings':>26}  {statistics.median(figures['modules']):8.0f}")
    if arguments.json:
        content = {"machine": machine.describe(), **figures}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
