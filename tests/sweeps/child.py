"""Runs the samples of one operator on the CPU and on the device and reports each as it ends.

Meant for a forked child: an operator that kills the process or hangs costs one result, and leaves no state to the next.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torchport
from sweeps.comparison import (
    assert_same_values,
    layout_difference,
    metadata_difference,
    on_cpu,
)
from sweeps.expected import HOST_ARGUMENTS, UNINITIALISED
from sweeps.modes import DIFFERENTIATES, MODES, OUT_KINDS, Arguments, Case, NotUsableError, tensors_of
from sweeps.placement import Placement
from sweeps.records import SampleRecord, Status
from sweeps.reference import as_near, precise
from torchport.config import settings

DEVICE = settings.device_name
SAMPLES_TRIED = 40
"""How many samples are tried for those that the CPU can run: some operators have thousands, none in some modes."""

Started = Callable[[int], None]
Ended = Callable[[SampleRecord], None]


def full_name(op: Any) -> str:
    """The operator's name with its variant."""
    variant = getattr(op, "variant_test_name", "")  # modules and optimizers have none
    return op.name + (f".{variant}" if variant else "")


def run_op(op: Any, mode: str, dtype: torch.dtype, limit: int, started: Started, ended: Ended) -> None:
    """Runs up to ``limit`` samples that the CPU can run; calls ``started`` before each and ``ended`` after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _run_samples(op, mode, dtype, limit, started, ended)


def _run_samples(op: Any, mode: str, dtype: torch.dtype, limit: int, started: Started, ended: Ended) -> None:
    torch.manual_seed(0)
    usable, refused = 0, "it has no samples"
    samples = op.sample_inputs("cpu", dtype, requires_grad=mode in DIFFERENTIATES)
    for index, sample in enumerate(itertools.islice(samples, max(SAMPLES_TRIED, limit))):
        if usable == limit:
            break
        run = _SampleRun(op, sample, usable, mode)
        reason = run.on_cpu()
        if reason:
            refused = reason
            continue
        usable += 1
        started(index)
        ended(run.on_device(index))
    if not usable:
        ended(SampleRecord(-1, Status.SKIP, refused))


def first_lines(error: BaseException) -> str:
    """The kind of error and the start of its text, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines)[:300]}"


class _SampleRun:
    """One sample: first what the CPU gives, twice, then what the device gives."""

    def __init__(self, op: Any, sample: Any, number: int, mode: str) -> None:
        self.case = Case(op, sample, number)
        self.mode = mode
        self.original: Arguments = (sample.input, tuple(sample.args), dict(sample.kwargs))
        self.random = op.name in UNINITIALISED

    def _placed(self, device: str) -> Arguments:
        x, args, kwargs = self.original
        placement = Placement(device)
        if self.case.op.name in HOST_ARGUMENTS and device != "cpu":
            return placement.place(x), args, placement.place(kwargs)
        placed: Arguments = placement.place((x, args, kwargs))
        return placed

    def on_cpu(self) -> str:
        """Computes what is wanted; returns why the CPU cannot run the sample, or nothing."""
        call = MODES[self.mode]
        # Not within the try: a tensor that cannot be copied is a fault of this program.
        self.arguments, second, (x, args, kwargs) = (self._placed("cpu") for _ in range(3))
        try:
            if self.mode == "out":
                torch.manual_seed(1)
                self.case = replace(self.case, results=self.case.op(x, *args, **kwargs))
                self._choose_out()
            torch.manual_seed(1)
            self.wanted = call(self.case, self.arguments, "cpu")
            again = call(self.case, second, "cpu")
        except NotUsableError as reason:
            return str(reason)
        except Exception as error:  # noqa: BLE001  # what the CPU refuses the device need not take
            return first_lines(error)
        try:
            assert_same_values(self.wanted, again)
        except AssertionError:
            self.random = True
        return ""

    def _choose_out(self) -> None:
        """Takes each kind of ``out=`` in turn, except where the CPU's own kernel ignores how the tensor lies."""
        kind = OUT_KINDS[self.case.number % len(OUT_KINDS)]
        chosen = replace(self.case, out_kind=kind)
        torch.manual_seed(1)
        try:
            honoured = _same(self.case.results, MODES["out"](chosen, self._placed("cpu"), "cpu"))
        except RuntimeError:  # it takes no such tensor
            honoured = False
        if honoured:
            self.case = chosen

    def on_device(self, index: int) -> SampleRecord:
        """The record of the same call on the device."""
        record = SampleRecord(index, random=self.random)
        try:
            torch.manual_seed(1)
            arguments = self._placed(DEVICE)
            before = torchport.executed_fallback_ops()
            with self._default_device():
                got = MODES[self.mode](self.case, arguments, DEVICE)
            after = torchport.executed_fallback_ops()
            record.fallbacks = {k: n - before.get(k, 0) for k, n in after.items() if n > before.get(k, 0)}
            record.layout = layout_difference((self.wanted, self.arguments), (got, arguments))
            self._judge(record, got, arguments)
        except Exception as error:  # noqa: BLE001  # it is the finding, and is kept
            record.status, record.error = Status.EXCEPTION, first_lines(error)
        return record

    def _default_device(self) -> AbstractContextManager[Any]:
        """Puts what a factory makes on the device where the sample says nothing of devices."""
        says = tensors_of(self.original) or "device" in self.original[2]
        return nullcontext() if says else torch.device(DEVICE)

    def _judge(self, record: SampleRecord, got: Any, arguments: Arguments) -> None:
        copies, unusable = self._used_further(got)
        difference = metadata_difference(self.wanted, got, DEVICE)
        # What the call wrote to an argument must be there as well.
        values = (self.wanted, tensors_of(self.arguments))
        found = (got, tensors_of(arguments))
        if self.random:
            on_cpu(found)  # it must still run
            record.same_random = self.case.op.name in UNINITIALISED or _same(values, found)
        elif (error := _wrong(values, found)) and not (rounding := self._rounding(values, found)):
            loose = _same(values, found, loosely=True)
            record.status, record.error = (Status.LOOSE if loose else Status.WRONG), error
            return
        elif error:
            record.rounding = rounding
        elif not unusable and (error := _wrong(self.wanted, copies)):
            record.status, record.error = Status.UNUSABLE, f"after a further operation: {error}"
            return
        if unusable:
            record.status, record.error = Status.UNUSABLE, unusable
        elif difference:
            record.status, record.error = Status.META, difference

    def _rounding(self, wanted: Any, got: Any) -> str:
        """How far both are from the exact results, where the device is as near to them as the CPU; else nothing."""
        case = replace(self.case, results=precise(self.case.results))
        arguments = precise(self._placed("cpu"))
        try:
            exact = MODES[self.mode](case, arguments, "cpu")
        except Exception:  # noqa: BLE001  # an operator that has no double precision has no such excuse
            return ""
        return as_near((exact, tensors_of(arguments)), wanted, got)

    def _used_further(self, got: Any) -> tuple[Any, str]:
        """The results after one more operation, and what went wrong in it."""
        try:
            copies = pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, got)
        except Exception as error:  # noqa: BLE001  # it is the finding, and is kept
            return None, first_lines(error)
        for original, copy in zip(tensors_of(got), tensors_of(copies), strict=True):
            if (original.shape, original.dtype, original.device) != (copy.shape, copy.dtype, copy.device):
                return copies, f"a clone is {tuple(copy.shape)}, {copy.dtype}, {copy.device}"
        return copies, ""


def _wrong(wanted: Any, got: Any, loosely: bool = False) -> str:
    try:
        assert_same_values(wanted, got, loosely)
    except AssertionError as error:
        return first_lines(error).removeprefix("AssertionError: ")
    return ""


def _same(wanted: Any, got: Any, loosely: bool = False) -> bool:
    return not _wrong(wanted, got, loosely)
