"""Serialization: a compiled computation as bytes, in this process and the next."""

from __future__ import annotations

import tempfile

import torch

from torchport.backend import Computation
from torchport.conformance.case import Laws, require
from torchport.conformance.comparison import check_values
from torchport.conformance.fresh import in_fresh_process
from torchport.conformance.graphs import Sketch, aten, doubled
from torchport.conformance.subject import Subject, checked

LAWS = Laws("serialization")


def lowered(subject: Subject, sketch: Sketch, *results: object) -> Computation:
    """A computation that is not compiled yet."""
    graph = sketch.graph(*results)  # type: ignore[arg-type]
    context = subject.backend.create_lowering_context("conformance", subject.device, graph.nodes)
    for value in graph.results:
        context.add_result(value)
    return context.build()


@LAWS.add("serialization")
def a_computation_survives_as_bytes(subject: Subject) -> None:
    """What deserialize_computation() makes of the bytes gives the results of what was serialized."""
    x, w = torch.rand(3, 4), torch.rand(4, 2)

    def sketched() -> Computation:
        sketch = Sketch(subject.backend.get_ir_builder())
        a, b = sketch.leaf(subject.upload(x)), sketch.leaf(subject.upload(w))
        product = sketch.call(aten.mm.default, a, b)
        return lowered(subject, sketch, sketch.call(aten.add.Tensor, product, product), product)

    (compiled,) = subject.backend.compile([sketched()])
    payload = subject.backend.serialize_computation(compiled)
    require(isinstance(payload, bytes), f"serialize_computation() returned {type(payload).__name__}")
    again = subject.backend.deserialize_computation(payload, sketched())
    results = checked(subject.execute(again, [subject.upload(x), subject.upload(w)]), again)
    check_values([x @ w * 2, x @ w], [subject.download(d) for d in results], what="a result of what was deserialized")


@LAWS.add("serialization")
def spoilt_bytes_are_refused(subject: Subject) -> None:
    """Bytes that were cut short are refused, or lead to the right result: never to another one."""
    x = torch.rand(3, 4)

    def sketched() -> Computation:
        sketch = Sketch(subject.backend.get_ir_builder())
        a = sketch.leaf(subject.upload(x))
        return lowered(subject, sketch, sketch.call(aten.add.Tensor, a, a))

    (compiled,) = subject.backend.compile([sketched()])
    payload = subject.backend.serialize_computation(compiled)
    for spoilt in (payload[: len(payload) // 2], b"\0" + payload[1:]):
        try:
            again = subject.backend.deserialize_computation(spoilt, sketched())
            results = checked(subject.execute(again, [subject.upload(x)]), again)
        except Exception as error:  # noqa: BLE001 - a refusal of any kind; the runtime compiles then
            require(str(error), "the error for spoilt bytes has no text")
            continue
        check_values(x + x, subject.download(results[0]), what="the result of spoilt bytes")


@LAWS.add("serialization", quick=False)
def a_second_process_compiles_nothing(subject: Subject) -> None:
    """A second process that runs the same program finds everything on the disk, with the same results."""
    # The class is asked first whether it works at all.
    subject.compile(doubled(subject.upload(torch.ones(2)), subject.backend.get_ir_builder()))
    with tempfile.TemporaryDirectory() as folder:
        first, second = (in_fresh_process(subject, "train", {"TORCHPORT_CACHE_DIR": folder}) for _ in range(2))
    require(first["compiled"], "the first process compiled nothing, with an empty cache on the disk")
    require(not second["compiled"], f"the second process compiled {second['compiled']} graphs")
    check_values(torch.tensor(first["w"]), torch.tensor(second["w"]), what="the second process's result")
