"""A backend that keeps the contract passes everything: the interpreter, and compilers and backends of other kinds."""

from __future__ import annotations

import pytest

from conformance_meta.broken_lazy import Honest
from conformance_meta.broken_lowering import FailsOnErf, Trivial
from torchport.backend import BackendRegistrar
from torchport.conformance.case import Result, Status
from torchport.conformance.catalogue import Choice, all_cases, law_cases
from torchport.conformance.operators.overloads import core_overloads
from torchport.conformance.running import run
from torchport.conformance.subject import Subject

ALL_LAWS = tuple(dict.fromkeys(case.family for case in law_cases()))

REASONS = ("it does not declare", "it runs the lazy device only", "its get_metrics() has no bytes_held")


def results_of(name: str, choice: Choice) -> list[Result]:
    return list(run(Subject(name), all_cases(choice), {}))


def unwanted(results: list[Result], *allowed: Status) -> list[str]:
    return [f"{r.case.name}: {r.status} {r.text}" for r in results if r.status not in (Status.PASS, *allowed)]


def test_the_interpreter_keeps_every_law_and_every_law_applies_to_it() -> None:
    # Without those that start processes: tests/aot and tests/unit/test_disk_cache.py do, on the interpreter.
    processes = {"lowering.a_file_runs_in_a_new_process", "serialization.a_second_process_compiles_nothing"}
    names = tuple(case.name for case in law_cases() if case.name not in processes)
    assert [] == unwanted(results_of("interpreter", Choice(only=names)))


def test_the_interpreter_has_all_of_core_aten_right() -> None:
    """In float32, and in int64 what has no floats: together all 193."""
    results = results_of("interpreter", Choice(quick=True, only=("operators.*[float32]", "operators.*bitwise*[int64]")))
    assert [] == unwanted(results, Status.NOT_APPLICABLE)
    right = {r.case.operator for r in results if r.status is Status.PASS}
    assert set(map(str, core_overloads())) == right
    assert 193 == len(right)


@pytest.mark.parametrize("backend", [Trivial, Honest])
def test_another_correct_backend_keeps_every_law_that_applies(backend: type) -> None:
    with BackendRegistrar("correct", backend):
        results = results_of("correct", Choice(quick=True, only=ALL_LAWS))
    assert [] == unwanted(results, Status.NOT_APPLICABLE)
    reasons = [r.text for r in results if r.status is Status.NOT_APPLICABLE]
    assert [] == [text for text in reasons if not text.startswith(REASONS)]


def test_a_trivial_compiler_has_a_sample_of_operators_right() -> None:
    with BackendRegistrar("correct", Trivial):
        only = ("operators.aten.a*[float32]", "operators.aten.s*[float32]", "operators.aten.nonzero*[float32]")
        results = results_of("correct", Choice(quick=True, only=only))
    refused = {r.case.operator: r.text for r in results if r.status is Status.REFUSED}
    assert [] == unwanted(results, Status.NOT_APPLICABLE, Status.REFUSED)
    assert all(text.startswith("it cannot be decomposed") for text in refused.values()), refused
    assert {"aten.nonzero.default"} == refused.keys()


def test_what_a_compiler_fails_on_counts_as_refused_with_what_it_raised() -> None:
    with BackendRegistrar("correct", FailsOnErf):
        results = results_of("correct", Choice(quick=True, only=("operators.aten.erf.default[float32]",)))
    (found,) = results
    assert Status.REFUSED is found.status
    assert "the interpreter runs it: NotImplementedError: no erf in this compiler" in found.text
