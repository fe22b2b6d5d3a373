"""Runs cases, and judges how they ended."""

from __future__ import annotations

import contextlib
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from torchport import metrics
from torchport.backend.delegate import availability_of
from torchport.config import override
from torchport.conformance.case import Case, Door, NotApplicable, Refused, Result, Status, Violation
from torchport.conformance.subject import Subject
from torchport.lazy.eager import executed_fallback_ops
from torchport.lazy.rng import manual_seed
from torchport.runtime.execution import wait_device_ops

_TEXT_LENGTH = 500


def run(
    subject: Subject,
    cases: Iterable[Case],
    expected: Mapping[str, str],
    starting: Callable[[Case], None] = lambda case: None,
) -> Iterator[Result]:
    """The result of each case, as it ends; the backend is the active one meanwhile.

    Args:
        subject: the backend.
        cases: what is tried.
        expected: name of a case that fails → why.
        starting: hears of each case before it is run.
    """
    # A computation that an earlier run has left on the disk would hide a compile.
    with override(cache_dir="off"), subject.active() if subject.availability else contextlib.nullcontext():
        for case in cases:
            starting(case)
            yield judged(run_case(subject, case), expected)


def run_case(subject: Subject, case: Case) -> Result:
    """How one case ends, whatever is expected of it."""
    started = time.monotonic()

    def ended(status: Status, text: str = "", detail: str = "") -> Result:
        return Result(case, status, text[:_TEXT_LENGTH], time.monotonic() - started, detail)

    reason = why_not(subject, case)
    if reason:
        return ended(Status.NOT_APPLICABLE, reason)
    fallbacks, interpreted = executed_fallback_ops(), metrics.counter_value("CompilerFallback")
    try:
        # A backend that warns, and a compiler's deprecations, are no concern of a law.
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.default_generator.manual_seed(0)
            if not subject.lowers_only:
                manual_seed(0)
            case.run(subject)
    except NotApplicable as signal:
        return ended(Status.NOT_APPLICABLE, next(iter(str(signal).strip().splitlines()), ""))
    except Refused as signal:
        return ended(Status.REFUSED, next(iter(str(signal).strip().splitlines()), ""))
    except Violation as found:
        _settle(subject)
        return ended(Status.FAIL, _one_line(str(found)), _trace(found) if found.__cause__ else "")
    except Exception as error:  # noqa: BLE001 - a stranger's backend: whatever it raises is the finding
        _settle(subject)
        return ended(Status.FAIL, f"{type(error).__name__}: {_one_line(str(error))}", _trace(error))
    after = executed_fallback_ops()
    eager = sorted(name for name, count in after.items() if count > fallbacks.get(name, 0))
    notes = [f"ran eagerly: {', '.join(eager)}"] if eager else []
    if metrics.counter_value("CompilerFallback") > interpreted:
        notes.append("its compiler failed, and the interpreter ran a graph")
    return ended(Status.PASS, "; ".join(notes))


def why_not(subject: Subject, case: Case) -> str:
    """Why a case does not apply to a backend; empty where it does."""
    if case.door is Door.ANY:
        return ""
    if not subject.availability:
        return f"not available here: {subject.availability.reason}"
    if case.door is Door.LAZY and subject.lowers_only:
        return "it lowers modules ahead of time, and does not run the lazy device"
    if case.door is Door.DELEGATE:
        try:
            answer = availability_of(subject.name, subject.delegate)
        except NotApplicable as signal:
            return str(signal)
        if not answer:
            return f"its delegate is not available here: {answer.reason}"
    lacking = [name for name in case.needs if not getattr(subject.capabilities, name)]
    return f"it does not declare {', '.join(lacking)}" if lacking else ""


def judged(result: Result, expected: Mapping[str, str]) -> Result:
    """The result, set against what is expected."""
    reason = expected.get(result.case.name)
    if reason is None:
        return result
    if result.status is Status.FAIL:
        return replace(result, status=Status.EXPECTED_FAILURE, text=f"{reason} (found: {result.text})", detail="")
    text = f"it is {result.status}, and listed as an expected failure ({reason}): take it out of the list"
    return replace(result, status=Status.UNEXPECTED_PASS, text=text)


def _settle(subject: Subject) -> None:
    """Ends what a case that failed has left behind, so that the next one does not hear of it."""
    if subject.lowers_only:
        return
    for _ in range(8):
        # Each call raises one error of those that nobody has heard of yet: they belong to the case that failed.
        with contextlib.suppress(Exception):
            wait_device_ops()
            return


def _one_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
