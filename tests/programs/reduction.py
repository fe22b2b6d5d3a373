"""Takes statements and results out of a failing program as long as it fails in the same way."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from lazy.cases.oracle import compare, nothing
from programs.execution import SEED, check_program, compiled
from programs.program import Program

LONGEST_KIND = 60


def failure_of(program: Program) -> str:
    """What is wrong with the device's run of the program, without the particulars; empty if nothing is."""
    run = compiled(program)
    if not is_comparable(run):
        return ""
    try:
        check_program(run)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the failure
        text = re.sub(r"at [^:]*: |\d+|<program>:\d+", "", str(error).partition("\n")[0])
        return f"{type(error).__name__}: {text[:LONGEST_KIND]}"
    return ""


def is_comparable(run: Callable[[str, Callable[[], None]], Any]) -> bool:
    """Whether PyTorch lets everything that a program leaves on the CPU be looked at.

    It refuses that for some views whose base was written to without their history.
    """
    torch.manual_seed(SEED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            left = run("cpu", nothing)
            compare(left, left, on_device=False)
    except RuntimeError:
        return False
    return True


def reduced(program: Program) -> Program:
    """The program without what its failure does not need."""
    kind = failure_of(program)
    if not kind:
        return program
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            if _is_sound(candidate) and failure_of(candidate) == kind:
                program, smaller = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """The programs that lack one thing, the largest things first."""
    if program.threads:
        yield replace(program, threads=())
        for i, thread in enumerate(program.threads):
            for less in _smaller(thread):
                yield replace(program, threads=(*program.threads[:i], less, *program.threads[i + 1 :]))
    for i in range(len(program.statements) - 1, -1, -1):
        left = program.statements[:i] + program.statements[i + 1 :]
        gone = {name.strip() for name in program.statements[i].source.partition(" = ")[0].split(",")}
        yield replace(
            program,
            statements=left,
            results=tuple(r for r in program.results if r.partition(".")[0] not in gone),
        )
    for i in range(len(program.results)):
        yield replace(program, results=program.results[:i] + program.results[i + 1 :])


def _is_sound(program: Program) -> bool:
    """Whether every name in the program has a meaning, and the CPU refuses what it is said to refuse."""
    try:
        with_errors = str(compiled(program)("cpu", nothing))
    except Exception:  # noqa: BLE001 - a program without sense
        return False
    return "NameError" not in with_errors and "nothing was refused" not in with_errors
