"""Schedules a sweep: each operator in a forked child of its own, a few at a time."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import torch

from sweeps.child import full_name, run_op
from sweeps.modes import DIFFERENTIATES, takes_part
from sweeps.records import OpResult, SampleRecord, Status

with warnings.catch_warnings():
    # Deprecated imports and the like inside PyTorch's test tools are no concern of ours.
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

NUMBERS = ("float32", "float64", "int64", "int32", "uint8", "bool", "bfloat16", "float16", "complex64")
EVERYTHING = {
    "fwd": NUMBERS,
    "bwd": ("float32", "float64", "bfloat16", "float16", "complex64"),
    "inplace": NUMBERS,
    "out": NUMBERS,
    "bwdbwd": ("float32", "float64", "complex64"),
    "jvp": ("float32", "float64", "complex64"),
}
"""The sweeps whose tables are in ``docs/support``: mode → dtypes."""

FIRST_CHOICE = (torch.float32, torch.float64, torch.complex64, torch.int64, torch.bool)


@dataclass(frozen=True, slots=True)
class Sweep:
    """One mode and one dtype over a choice of operators.

    Attributes:
        mode: a key of ``modes.MODES``.
        dtype: the dtype's name, ``float32``.
        samples: how many samples of each operator.
        timeout_s: how long one operator may take.
        jobs: how many children at a time.
    """

    mode: str
    dtype: str
    samples: int = 5
    timeout_s: float = 120.0
    jobs: int = 2

    def dtype_for(self, op: Any) -> torch.dtype | None:
        """The dtype to run the operator in; ``None`` when it has no part in this sweep.

        Forward in float32 is the sweep that holds every operator: one without float32 runs in a dtype that it has.
        """
        if not takes_part(op, self.mode):
            return None
        wanted = getattr(torch, self.dtype)
        supported = op.supported_backward_dtypes("cpu") if self.mode in DIFFERENTIATES else op.supported_dtypes("cpu")
        if wanted in supported:
            return wanted  # type: ignore[no-any-return]
        if self.mode in DIFFERENTIATES or wanted is not torch.float32:
            return None
        return next((d for d in (*FIRST_CHOICE, *sorted(supported, key=str)) if d in supported), None)


def all_operators() -> list[Any]:
    """Every ``OpInfo``, by name."""
    return sorted(op_db, key=full_name)


def named_operators(names: Iterable[str]) -> list[Any]:
    """Those of these names, with their variants.

    Raises:
        ValueError: there is no operator of that name.
    """
    wanted = set(names)
    found = [op for op in all_operators() if {op.name, full_name(op)} & wanted]
    missing = wanted - {n for op in found for n in (op.name, full_name(op))}
    if missing:
        raise ValueError(
            f"no operator is called {', '.join(sorted(missing))}; names are those of OpInfo, as 'linalg.eigh'"
        )
    return found


def sampled_operators(count: int) -> list[Any]:
    """A choice of ``count`` operators that is the same everywhere: those whose names have the smallest hashes."""
    return sorted(op_db, key=lambda op: hashlib.sha256(full_name(op).encode()).digest())[:count]


def stratified_operators(sweep: Sweep, count: int) -> list[Any]:
    """A choice of ``count`` operators of one sweep, another for each sweep, so that many have their turn."""

    def key(op: Any) -> bytes:
        return hashlib.sha256(f"{sweep.mode} {sweep.dtype} {full_name(op)}".encode()).digest()

    return sorted((op for op in op_db if sweep.dtype_for(op) is not None), key=key)[:count]


@dataclass(slots=True)
class _Job:
    """A running child."""

    op: Any
    dtype: str
    pid: int
    pipe: int
    errors: IO[bytes]
    started_s: float
    received: bytes = b""
    fields: dict[str, Any] = field(default_factory=dict)


def run_sweep(
    sweep: Sweep, operators: Iterable[Any], progress: Callable[[OpResult], None], run: Callable[..., None] = run_op
) -> list[OpResult]:
    """The results of all operators that have a part in the sweep, by name; ``progress`` hears of each as it ends.

    ``run`` is what a child does with one of them, as :func:`sweeps.child.run_op`.
    """
    todo = _participants(sweep, operators)
    running: list[_Job] = []
    results: list[OpResult] = []
    exhausted = False
    try:
        while running or not exhausted:
            while len(running) < sweep.jobs and not exhausted:
                participant = next(todo, None)
                if participant is None:
                    exhausted = True
                else:
                    running.append(_start(sweep, *participant, run))
            for job in _ended(sweep, running):
                running.remove(job)
                result = _result(sweep, job)
                results.append(result)
                progress(result)
    finally:
        for job in running:
            os.kill(job.pid, signal.SIGKILL)
            os.waitpid(job.pid, 0)
    return sorted(results, key=lambda r: r.name)


def _participants(sweep: Sweep, operators: Iterable[Any]) -> Iterator[tuple[Any, torch.dtype]]:
    for op in operators:
        dtype = sweep.dtype_for(op)
        if dtype is not None:
            yield op, dtype


def _start(sweep: Sweep, op: Any, dtype: torch.dtype, run: Callable[..., None]) -> _Job:
    pipe, write_end = os.pipe()
    errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the job
    # What is buffered would be written by the child as well.
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Since 3.12 Python warns of a fork beside threads; these threads hold nothing that a child waits for.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(pipe)
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        _run_child(sweep, op, dtype, write_end, run)
    os.close(write_end)
    return _Job(op, str(dtype).removeprefix("torch."), pid, pipe, errors, time.monotonic())


def _run_child(sweep: Sweep, op: Any, dtype: torch.dtype, write_end: int, run: Callable[..., None]) -> None:
    def send(line: str) -> None:
        os.write(write_end, line.encode() + b"\n")

    code = 1
    try:
        run(
            op,
            sweep.mode,
            dtype,
            sweep.samples,
            lambda index: send(json.dumps({"started": index})),
            lambda record: send(record.to_json()),
        )
        send(json.dumps({"done": True}))
        code = 0
    except BaseException:  # noqa: BLE001  # the parent reads it from the child's standard error
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Not sys.exit: the parent's exit handlers and open files are not the child's.
        os._exit(code)


def _ended(sweep: Sweep, running: list[_Job]) -> list[_Job]:
    readable, _, _ = select.select([job.pipe for job in running], [], [], 0.2)
    ended = []
    for job in running:
        if job.pipe in readable:
            received = os.read(job.pipe, 1 << 16)
            job.received += received
            if not received:
                ended.append(job)
        elif time.monotonic() - job.started_s > sweep.timeout_s:
            job.fields["timeout"] = True
            os.kill(job.pid, signal.SIGKILL)
            ended.append(job)
    return ended


def _result(sweep: Sweep, job: _Job) -> OpResult:
    _, status = os.waitpid(job.pid, 0)
    os.close(job.pipe)
    job.errors.seek(0)
    errors = [line for line in job.errors.read().decode(errors="replace").splitlines() if line.strip()]
    job.errors.close()
    samples: list[SampleRecord] = []
    in_progress: int | None = None
    done = False
    for line in job.received.splitlines():
        fields = json.loads(line)
        if "started" in fields:
            in_progress = fields["started"]
        elif "done" in fields:
            done = True
        else:
            samples.append(SampleRecord.from_dict(fields))
            in_progress = None
    if not done:
        if job.fields.get("timeout"):
            kind, how = Status.TIMEOUT, f"no result after {sweep.timeout_s:.0f} s"
        elif os.WIFSIGNALED(status):
            kind, how = Status.CRASH, signal.Signals(os.WTERMSIG(status)).name
        else:
            kind, how = Status.CRASH, f"the process exited with {os.WEXITSTATUS(status)}"
        samples.append(
            SampleRecord(-1 if in_progress is None else in_progress, kind, f"{how}; {errors[-1] if errors else ''}")
        )
    return OpResult(full_name(job.op), sweep.mode, job.dtype, samples, time.monotonic() - job.started_s)
