"""Availability: what the backend says of itself is true, and says why where it is no."""

from __future__ import annotations

import torch

from torchport.backend import Availability, Capabilities
from torchport.backend.delegate import availability_of
from torchport.conformance.case import Door, Laws, NotApplicable, Violation, require
from torchport.conformance.graphs import Sketch, aten, doubled
from torchport.conformance.subject import Subject

LAWS = Laws("availability", Door.ANY)


@LAWS.add()
def a_no_has_a_reason(subject: Subject) -> None:
    """A backend that is not available says what is in the way."""
    found = subject.availability
    require(isinstance(found, Availability), f"its availability is {found!r}")
    require(found.available or found.reason.strip(), "it says that it is not available, and not why")


@LAWS.add()
def a_yes_is_true_of_the_lazy_device(subject: Subject) -> None:
    """A backend that says it is available takes data, compiles and executes."""
    if not subject.availability:
        raise NotApplicable(f"not available here: {subject.availability.reason}")
    if subject.lowers_only:
        raise NotApplicable("it lowers modules ahead of time, and does not run the lazy device")
    try:
        subject.run(doubled(subject.upload(torch.ones(2))))
    except (NotApplicable, AssertionError):  # it refuses, or is wrong: other laws
        return
    except Exception as error:
        raise Violation(f"it says that it is available; {type(error).__name__}: {error}") from error


@LAWS.add()
def a_yes_is_true_of_lowering(subject: Subject) -> None:
    """is_available() is true only if compile() and execute() can both be called here."""
    answer = availability_of(subject.name, subject.delegate)
    require(answer.available or answer.reason.strip(), "its delegate says that it is not available, and not why")
    if not answer.available:
        raise NotApplicable(f"its delegate is not available here: {answer.reason}")
    sketch = Sketch()
    x = sketch.parameter(torch.float32, 2)
    graph = sketch.graph(sketch.call(aten.add.Tensor, x, x))
    try:
        handle = subject.lowered({"forward": graph})["forward"]
        subject.delegate.execute(handle, [torch.ones(2)])
    except NotApplicable:
        return
    except Exception as error:
        raise Violation(f"its is_available() is true; {type(error).__name__}: {error}") from error


@LAWS.add()
def both_doors_say_the_same(subject: Subject) -> None:
    """A backend of both doors is available for both, or for none."""
    if subject.lowers_only:
        raise NotApplicable("it has one door")
    lazy, lowering = subject.availability, availability_of(subject.name, subject.delegate)
    require(
        bool(lazy) == bool(lowering),
        f"the lazy device is {'' if lazy else 'not '}available ({lazy.reason or 'no reason'}), lowering is "
        f"{'' if lowering else 'not '}({lowering.reason or 'no reason'})",
    )


@LAWS.add()
def capabilities_are_declared(subject: Subject) -> None:
    """The capabilities are those of the instance, and of their type."""
    if subject.lowers_only or not subject.availability:
        raise NotApplicable("it does not run the lazy device here")
    found = subject.capabilities
    require(isinstance(found, Capabilities), f"its capabilities are {found!r}")
    require(not found.eager_random_stream or found.random, "eager_random_stream without random says nothing")
    require(not found.random_state or found.random, "random_state without random says nothing")
