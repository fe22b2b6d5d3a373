"""What is done in a process of its own, in which nothing of this one is left: a module that is run.

python -m torchport.conformance.fresh '{"task": "load", …}'
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from torchport import metrics
from torchport.aot.restoring import load
from torchport.backend import default_registry
from torchport.backend.registering import register_backend
from torchport.backend.registration import installed_entry_points
from torchport.config import settings
from torchport.conformance.case import NotApplicable, Violation
from torchport.conformance.subject import Subject
from torchport.lazy.switch import use
from torchport.lazy.sync import sync

TIMEOUT_S = 300
_NOT_REGISTERED = 3


def in_fresh_process(subject: Subject, task: str, environment: Mapping[str, str] | None = None, **facts: str) -> Any:
    """What a task printed, from a new process.

    Raises:
        NotApplicable: the backend's class cannot be had there.
        Violation: the process failed, with the end of its text.
    """
    message: dict[str, str] = {"task": task, "backend": subject.name, **facts}
    if subject.name not in installed_entry_points():
        owner = subject.owner
        if owner.__module__ == "__main__" or "<locals>" in owner.__qualname__:
            raise NotApplicable(f"a new process cannot import {owner.__module__}.{owner.__qualname__}")
        message |= {"module": owner.__module__, "class": owner.__qualname__}
    child = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TORCHPORT_CACHE_DIR": "off"}
    done = subprocess.run(
        [sys.executable, "-m", "torchport.conformance.fresh", json.dumps(message)],
        env=child | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode == _NOT_REGISTERED:
        raise NotApplicable(f"a new process cannot register the backend: {_end_of(done.stderr)}")
    if done.returncode:
        raise Violation(f"a new process ended with {done.returncode}: {_end_of(done.stderr)}")
    return json.loads(done.stdout.splitlines()[-1])


def _end_of(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]


def _load(message: Mapping[str, str]) -> None:
    """Calls each method of a file with the inputs of another, and writes the results."""
    module = load(message["file"])
    torch.manual_seed(7)
    inputs = torch.load(message["inputs"], weights_only=True)
    torch.save({name: getattr(module, name)(*args) for name, args in inputs.items()}, message["outputs"])
    json.dump({}, sys.stdout)


def _train(message: Mapping[str, str]) -> None:
    """A few steps on the lazy device, and how much was compiled for them."""
    use(message["backend"])
    w = torch.full((4, 3), 0.5, device=settings.device_name)
    x = torch.arange(8.0).reshape(2, 4).to(settings.device_name)
    for _ in range(3):
        w = w - 0.01 * (x.t() @ torch.tanh(x @ w))
        sync()
    json.dump({"w": w.cpu().tolist(), "compiled": metrics.counter_value("UncachedCompile")}, sys.stdout)


TASKS: dict[str, Callable[[Mapping[str, str]], None]] = {"load": _load, "train": _train}


def main(argument: str) -> int:
    """Does a task; returns the exit code."""
    message = json.loads(argument)
    if "module" in message and message["backend"] not in default_registry().names():
        try:
            found = reduce(getattr, message["class"].split("."), importlib.import_module(message["module"]))
            register_backend(message["backend"], found)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the parent
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            return _NOT_REGISTERED
    TASKS[message["task"]](message)
    sys.stdout.write("\n")
    return 0


def as_path(folder: str | Path, name: str) -> str:
    """A file in a folder, as text."""
    return str(Path(folder) / name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
