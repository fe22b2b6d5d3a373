"""What the figures of a benchmark depend on: the machine, its load, and the versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path


def describe() -> dict[str, str]:
    """The processor, the cores that this process may use, the load, and the versions."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown",
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "torchport": _version("torchport"),
        "numpy": _version("numpy"),
    }


def text() -> str:
    """``describe()`` as lines."""
    return "\n".join(f"{name:>10}  {value}" for name, value in describe().items())


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed (from a source tree, or missing)"
