"""Errors: what fails says so, and spoils nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch._ops import OpOverload

from torchport.backend import BackendData, Computation, Shape
from torchport.conformance.case import Laws, Violation, require
from torchport.conformance.comparison import check_values
from torchport.conformance.graphs import Sketch, aten, doubled
from torchport.conformance.subject import Subject

LAWS = Laws("errors")
MESSAGE = "this operator of the conformance kit fails whenever its argument is negative"


@cache
def failing_operator() -> OpOverload:
    """An operator that fails where its argument is negative, and is the identity where it is not."""
    library = torch.library.Library("torchport_conformance", "FRAGMENT")
    library.define("fail_if_negative(Tensor x) -> Tensor")

    def fail_if_negative(x: torch.Tensor) -> torch.Tensor:
        if bool((x < 0).any()):
            raise RuntimeError(MESSAGE)
        return x.clone()

    library.impl("fail_if_negative", fail_if_negative, "CPU")
    library.impl("fail_if_negative", torch.empty_like, "Meta")
    _KEPT.append(library)
    found: OpOverload = torch.ops.torchport_conformance.fail_if_negative.default
    return found


_KEPT: list[torch.library.Library] = []
"""A library's operators go with it."""


def outcome(subject: Subject, computation: Computation, arguments: Sequence[BackendData]) -> list[BackendData]:
    """The results, or an error; results that have one count as raised.

    Raises:
        Exception: what the execution raised, or the error of a result.
    """
    results = subject.execute(computation, arguments)
    for data in results:
        if data.error is not None:
            raise data.error
    return results


@LAWS.add()
def an_error_is_raised(subject: Subject) -> None:
    """An operator that fails at run time is an exception of execute_computation(), or the error of its result."""
    good = subject.upload(torch.ones(3))
    sketch = Sketch(subject.backend.get_ir_builder())
    graph = sketch.graph(sketch.call(failing_operator(), sketch.leaf(good)))
    computation = subject.compile(graph)
    try:
        found = outcome(subject, computation, [subject.upload(-torch.ones(3))])
    except Exception as error:  # noqa: BLE001 - it is what is wanted, of any kind
        require(MESSAGE in _texts(error), f"the operator's own text is not in the error: {error}")
    else:
        raise Violation(f"an operator that fails gave {found!r}")
    (again,) = outcome(subject, computation, [good])
    check_values(torch.ones(3), subject.download(again), what="the result of an execution after one that failed")


def _texts(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return " ".join(texts)


@LAWS.add()
def an_argument_without_a_value_is_an_error(subject: Subject) -> None:
    """A placeholder that nobody has assigned is no argument: it is refused, not taken for something."""
    graph = doubled(subject.upload(torch.ones(3)), subject.backend.get_ir_builder())
    computation = subject.compile(graph)
    empty = subject.backend.create_data_placeholder(subject.device, Shape(torch.float32, (3,)))
    try:
        found = outcome(subject, computation, [empty])
    except Exception as error:  # noqa: BLE001 - it is what is wanted, of any kind
        require(str(error), "the error has no text")
        return
    require(not any(d.has_value for d in found), "a computation of an argument without a value has a value")
    raise Violation("a computation of an argument without a value ended without an error")


@LAWS.add()
def an_index_out_of_range_is_an_error(subject: Subject) -> None:
    """An index that is out of range fails as in eager PyTorch; it is not clamped, wrapped or read as it is."""
    sketch = Sketch(subject.backend.get_ir_builder())
    x, i = (sketch.leaf(subject.upload(t)) for t in (torch.arange(4.0), torch.tensor([1, 2])))
    computation = subject.compile(sketch.graph(sketch.call(aten.index_select.default, x, 0, i)))
    arguments = [subject.upload(torch.arange(4.0)), subject.upload(torch.tensor([1, 9]))]
    try:
        (found,) = outcome(subject, computation, arguments)
    except Exception:  # noqa: BLE001 - it is what is wanted, of any kind
        return
    raise Violation(f"index 9 of 4 elements gave {subject.download(found).tolist()}")


@LAWS.add("error_recovery")
def an_error_spoils_what_depends_on_it(subject: Subject) -> None:
    """With error_recovery arguments stay as they were, and a lost argument spoils only results that need it."""
    sketch = Sketch(subject.backend.get_ir_builder())
    data = [subject.upload(torch.ones(3)), subject.upload(torch.full((3,), 2.0))]
    a, b = map(sketch.leaf, data)
    graph = sketch.graph(sketch.call(aten.neg.default, a), sketch.call(aten.neg.default, b))
    computation = subject.compile(graph)
    lost = subject.backend.create_data_placeholder(subject.device, Shape(torch.float32, (3,)))
    lost.error = RuntimeError("lost to an earlier error")
    first, second = subject.execute(computation, [lost, data[1]])
    require(first.error is not None, "the result of an argument that was lost has no error")
    require(second.error is None, f"a result that does not need the lost argument has the error {second.error}")
    check_values(torch.full((3,), -2.0), subject.download(second))


@LAWS.add()
def an_error_leaves_its_arguments(subject: Subject) -> None:
    """The arguments of an execution that failed have their values."""
    sketch = Sketch(subject.backend.get_ir_builder())
    good = subject.upload(torch.ones(3))
    bad = subject.upload(-torch.ones(3))
    graph = sketch.graph(sketch.call(failing_operator(), sketch.leaf(good)))
    computation = subject.compile(graph)
    try:
        outcome(subject, computation, [bad])
    except Exception:  # noqa: BLE001 - whether it fails is another law
        check_values(-torch.ones(3), subject.download(bad), what="the argument of an execution that failed")
