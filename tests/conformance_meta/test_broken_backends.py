"""Each broken backend is caught by the case that should catch it, and by no other that is about something else."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from conformance_meta import broken_lazy as lazy
from conformance_meta import broken_lowering as lowered
from torchport.backend import BackendImplInterface, BackendRegistrar
from torchport.conformance.case import Status
from torchport.conformance.catalogue import Choice, all_cases, law_cases
from torchport.conformance.laws import lowering
from torchport.conformance.running import run
from torchport.conformance.subject import Subject

ERF, ARGMAX = "operators.aten.erf.default[float32]", "operators.aten.argmax.default[float32]"
FILE = "lowering.a_file_runs_in_a_new_process"
LAZY = ("availability", "data", "execution", "randomness", "devices", "errors", "threads.data*", "serialization")
LOWERING = ("availability", "threads.a_lowered*", *(case.name for case in lowering.LAWS if case.name != FILE))

CAUGHT: list[tuple[type[BackendImplInterface], tuple[str, ...], str, set[str]]] = [
    (
        lazy.DropsAnOutput,
        LAZY,
        "execution.there_is_a_result_for_each",
        # They too ask for three results.
        {"execution.the_builders_nodes_run", "randomness.numbers_are_of_the_distribution"},
    ),
    (
        lazy.SwapsTwoOutputs,
        LAZY,
        "execution.results_are_in_order",
        {"execution.a_result_may_be_asked_for_twice"},
    ),
    (lazy.ReusesItsResultBuffer, LAZY, "execution.results_stay_as_they_were", set()),
    (lazy.WritesToAnInput, LAZY, "execution.arguments_stay_as_they_were", set()),
    (lazy.FreezesNumbers, LAZY, "execution.numbers_are_inputs", set()),
    (lazy.RoundsNumbers, LAZY, "execution.numbers_are_exact", set()),
    (lazy.ReversesWhatItCompiles, LAZY, "execution.compile_keeps_the_order", set()),
    (lazy.LeaksHandles, LAZY, "execution.dropped_results_are_freed", set()),
    (lazy.TakesTheHostTensor, LAZY, "data.the_host_tensor_is_copied", set()),
    (lazy.KeepsTheHostTensor, LAZY, "data.the_host_tensor_is_not_kept", set()),
    (lazy.GivesItsOwnTensor, LAZY, "data.what_comes_back_is_the_callers", set()),
    (lazy.SharesOnePlaceholder, LAZY, "data.a_placeholder_has_its_own_value", set()),
    (
        lazy.IgnoresTheSeed,
        LAZY,
        "randomness.a_seed_repeats_the_numbers",
        {"randomness.the_stream_is_eagers"},
    ),
    (lazy.DrawsOnce, LAZY, "randomness.the_generator_goes_on", set()),
    (lazy.SharesScratchMemory, LAZY, "threads.data_moves_while_something_runs", set()),
    (
        lazy.SwallowsErrors,
        LAZY,
        "errors.an_error_is_raised",
        {"errors.an_argument_without_a_value_is_an_error"},
    ),
    (lazy.ClampsIndices, LAZY, "errors.an_index_out_of_range_is_an_error", set()),
    (lazy.IsGoneAfterExit, LAZY, "devices.it_can_be_taken_up_again", set()),
    (lazy.AcceptsAnyOrdinal, LAZY, "devices.what_does_not_exist_is_refused", set()),
    (lazy.CannotBeSaved, LAZY, "serialization.spoilt_bytes_are_refused", set()),
    (lazy.SaysNoWithoutAReason, LAZY, "availability.a_no_has_a_reason", set()),
    (lazy.WrongValueOfErf, (*LAZY, ERF, ARGMAX), ERF, set()),
    (lazy.WrongDtypeOfArgmax, (*LAZY, ERF, ARGMAX), ARGMAX, set()),
    (lazy.RefusesErfSilently, (*LAZY, ERF, ARGMAX), ERF, set()),
    (
        lowered.WritesToAnInput,
        LOWERING,
        "lowering.inputs_stay_as_they_were",
        # They call twice with the same inputs, or compare with what they have passed.
        {"lowering.dtypes_are_kept", "lowering.numbers_follow_the_tensors", "lowering.results_keep_their_values"},
    ),
    (lowered.AliasesAnInput, LOWERING, "lowering.results_are_the_callers", set()),
    (lowered.KeepsItsInputs, LOWERING, "lowering.inputs_are_not_kept", set()),
    (lowered.MixesMethodsUp, LOWERING, "lowering.several_methods_are_apart", set()),
    (lowered.IgnoresTheSeed, LOWERING, "lowering.random_numbers_follow_the_seed", set()),
    (lowered.DoorsThatDisagree, LOWERING, "availability.both_doors_say_the_same", set()),
    (lowered.SharesItsBuffer, LOWERING, "threads.a_lowered_graph_is_called_by_several", set()),
    (lowered.LosesWhatItSaves, (*LOWERING, FILE), FILE, set()),
]
"""The backend, the cases that are run, the one that catches it, and others that cannot but see it too."""

NOTHING_WORKS = [
    (lazy.ReturnsBeforeItIsDone, LAZY, "execution.results_have_their_values"),
    (lazy.LiesAboutItsAvailability, LAZY, "availability.a_yes_is_true_of_the_lazy_device"),
    (lowered.LiesAboutAvailability, LOWERING, "availability.a_yes_is_true_of_lowering"),
]
"""Backends of which no execution is right, so that most cases fail; one of them says why."""


@pytest.fixture(autouse=True, scope="module")
def collections_are_quick() -> Iterator[None]:
    """The laws of memory collect garbage; what is there already need not be searched each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def failures(backend: type[BackendImplInterface], *only: str) -> set[str]:
    """The names of the cases that a backend fails."""
    with BackendRegistrar("broken", backend):
        results = list(run(Subject("broken"), all_cases(Choice(quick=True, only=only)), {}))
    return {r.case.name for r in results if r.status is Status.FAIL}


@pytest.mark.parametrize(("backend", "cases", "catches", "others"), CAUGHT, ids=lambda x: getattr(x, "__name__", None))
def test_a_broken_backend_is_caught_by_the_case_for_it(
    backend: type[BackendImplInterface], cases: tuple[str, ...], catches: str, others: set[str]
) -> None:
    assert {catches} | others == failures(backend, *cases)


@pytest.mark.parametrize(("backend", "cases", "catches"), NOTHING_WORKS, ids=lambda x: getattr(x, "__name__", None))
def test_where_nothing_works_the_case_for_it_is_among_those_that_fail(
    backend: type[BackendImplInterface], cases: tuple[str, ...], catches: str
) -> None:
    assert catches in failures(backend, *cases)


def test_every_case_that_catches_is_a_case() -> None:
    names = {case.name for case in law_cases()} | {ERF, ARGMAX}
    caught = {catches for _, _, catches, _ in CAUGHT} | {catches for _, _, catches in NOTHING_WORKS}
    assert caught <= names
