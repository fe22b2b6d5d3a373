"""A case of the kit: one law of the contract, and how its run ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # A case is run with a subject, which nothing here needs to know.
    from torchport.conformance.subject import Subject


class Status(StrEnum):
    """How a case ended."""

    PASS = "pass"
    FAIL = "fail"
    REFUSED = "refused"
    """The backend said that it does not do this, and why: the runtime runs it elsewhere."""
    NOT_APPLICABLE = "not applicable"
    EXPECTED_FAILURE = "expected failure"
    UNEXPECTED_PASS = "unexpected pass"
    """It is listed as an expected failure, and holds: the list has to say what is true."""


FAILED = frozenset({Status.FAIL, Status.UNEXPECTED_PASS})


class Door(StrEnum):
    """What a case needs of a backend before anything else."""

    ANY = "any"
    LAZY = "lazy device"
    DELEGATE = "lowering ahead of time"


class Violation(AssertionError):  # noqa: N818 - what a case finds is no error of the program
    """A law does not hold; the text says what was wanted and what was found."""


class NotApplicable(Exception):  # noqa: N818 - a signal, not an error
    """The law says nothing of this backend; the text says why."""


class Refused(Exception):  # noqa: N818 - a signal, not an error
    """The backend does not run what the case is about; the text is its reason."""


def require(holds: object, text: str) -> None:
    """Raises :class:`Violation` with the text unless it holds."""
    if not holds:
        raise Violation(text)


@dataclass(frozen=True, slots=True)
class Case:
    """One law, and how it is tried.

    Attributes:
        family: what it is about; the first part of the name.
        name: unique, as ``execution.results_are_in_order``; expected failures are listed by it.
        law: the law in a sentence.
        run: tries it; raises :class:`Violation`, :class:`NotApplicable`, :class:`Refused`, or whatever went wrong.
        door: what it needs of the backend before anything else.
        needs: the fields of ``Capabilities`` that a backend must declare for the law to say something of it.
        quick: whether it is part of the quick choice.
        operator, dtype: of a case about an operator.
    """

    family: str
    name: str
    law: str
    run: Callable[[Subject], None]
    door: Door = Door.LAZY
    needs: tuple[str, ...] = ()
    quick: bool = True
    operator: str = ""
    dtype: str = ""


class Laws:
    """The cases of one family, made from functions: the name is the function's, the law is its docstring.

    Args:
        family: what they are about.
        door: what they need of a backend.
    """

    def __init__(self, family: str, door: Door = Door.LAZY) -> None:
        self.family = family
        self.door = door
        self.cases: list[Case] = []

    def add(self, *needs: str, quick: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Makes a function of a subject a case."""

        def decorate(function: Callable[..., None]) -> Callable[..., None]:
            name = f"{self.family}.{function.__name__}"
            law = " ".join((function.__doc__ or "").split())
            self.cases.append(Case(self.family, name, law, function, self.door, needs, quick))
            return function

        return decorate

    def add_each(self, values: dict[str, Any], *needs: str, quick: bool = True) -> Callable[..., Any]:
        """Makes a function of a subject and a value a case for each value, ``name[key]``."""

        def decorate(function: Callable[..., None]) -> Callable[..., None]:
            made = Laws(self.family, self.door)
            made.add(*needs, quick=quick)(function)
            (case,) = made.cases
            for key, value in values.items():
                run = _with(function, value)
                self.cases.append(replace(case, name=f"{case.name}[{key}]", run=run))
            return function

        return decorate

    def __iter__(self) -> Iterator[Case]:
        return iter(self.cases)


def _with(function: Callable[..., None], value: Any) -> Callable[[Subject], None]:
    def run(subject: Subject) -> None:
        function(subject, value)

    return run


@dataclass(frozen=True, slots=True)
class Result:
    """How a case ended.

    Attributes:
        case: which.
        status: how.
        text: the reason of a refusal or of an expected failure, why it does not apply, or what was found.
        seconds: how long it took.
        detail: the traceback of what went wrong.
    """

    case: Case
    status: Status
    text: str = ""
    seconds: float = 0.0
    detail: str = ""

    @property
    def failed(self) -> bool:
        """Whether the run fails for it."""
        return self.status in FAILED
