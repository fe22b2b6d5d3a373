"""All cases, and which of them a run takes."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchport.conformance.case import Case
from torchport.conformance.laws import (
    availability,
    data,
    devices,
    execution,
    failures,
    lowering,
    programs,
    randomness,
    serialization,
    threads,
)
from torchport.conformance.models import cases as models
from torchport.conformance.operators.cases import operator_cases
from torchport.conformance.operators.overloads import DTYPES, QUICK_DTYPES

_LAWS = (
    availability.LAWS,
    data.LAWS,
    execution.LAWS,
    randomness.LAWS,
    devices.LAWS,
    failures.LAWS,
    threads.LAWS,
    threads.LOWERED,
    serialization.LAWS,
    programs.LAWS,
    lowering.LAWS,
    models.LAWS,
    models.LOWERED,
)
SAMPLES, QUICK_SAMPLES = 4, 2


@dataclass(frozen=True, slots=True)
class Choice:
    """Which cases a run takes.

    Attributes:
        quick: the quick ones, operators in three dtypes with fewer samples.
        only: patterns of names, as ``operators.*`` or ``data.*``; a name without a dot is a family. All if empty.
        all_operators: beside core ATen also every other operator that PyTorch's OpInfo leads to.
        samples: calls of each operator and dtype; by default what ``quick`` says.
    """

    quick: bool = False
    only: tuple[str, ...] = ()
    all_operators: bool = False
    samples: int | None = None

    def takes(self, case: Case) -> bool:
        """Whether the case is taken."""
        return (case.quick or not self.quick) and self.names(case.name)

    def names(self, name: str) -> bool:
        """Whether the patterns name it."""
        return not self.only or any(_matches(name, pattern) for pattern in self.only)


def _matches(name: str, pattern: str) -> bool:
    if name == pattern or ("." not in pattern and name.partition(".")[0] == pattern):
        return True
    # The brackets of a name are no character class.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def law_cases() -> list[Case]:
    """The cases about the contract and about models: all but the operators."""
    return [case for laws in _LAWS for case in laws]


def all_cases(choice: Choice = Choice()) -> Iterator[Case]:
    """The cases of a choice, in the order in which they are run and told."""
    yield from filter(choice.takes, law_cases())
    if not choice.only or any(_may_be_an_operator(p) for p in choice.only):
        dtypes: Sequence[str] = QUICK_DTYPES if choice.quick else DTYPES
        samples = choice.samples or (QUICK_SAMPLES if choice.quick else SAMPLES)
        yield from filter(choice.takes, operator_cases(dtypes, samples, choice.all_operators))


def _may_be_an_operator(pattern: str) -> bool:
    return pattern.startswith(("operators", "*", "?"))


def unknown_names(names: Iterable[str]) -> list[str]:
    """Those of the names that no case has; operators outside of core ATen are taken on trust."""
    known = {case.name for case in law_cases()}
    return sorted(n for n in names if n not in known and not n.startswith("operators."))
