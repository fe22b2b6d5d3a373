"""Threads: data comes and goes, and graphs are compiled, while something is executed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from torchport.conformance.case import Door, Laws, Violation, require
from torchport.conformance.comparison import check_values
from torchport.conformance.graphs import Sketch, aten, doubled, sums_and_products
from torchport.conformance.subject import Subject, checked

LAWS = Laws("threads")
LOWERED = Laws("threads", Door.DELEGATE)
THREADS, TURNS, SIZE = 4, 25, 512


def together(tasks: list[Callable[[], None]]) -> None:
    """Runs tasks at the same time, each on a thread of its own.

    Raises:
        Violation: one failed; the first failure.
    """
    failures: list[BaseException] = []
    start = threading.Barrier(len(tasks))

    def run(task: Callable[[], None]) -> None:
        try:
            start.wait()
            task()
        except BaseException as error:  # noqa: BLE001 - it is raised on the thread of the case
            failures.append(error)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        require(not thread.is_alive(), "a thread has not ended after 120 s")
    if failures:
        raise Violation(f"{type(failures[0]).__name__}: {failures[0]}") from failures[0]


@LAWS.add()
def data_moves_while_something_runs(subject: Subject) -> None:
    """Tensors are uploaded and downloaded on other threads while one executes."""
    graph = doubled(subject.upload(torch.ones(SIZE)), subject.backend.get_ir_builder())
    computation = subject.compile(graph)

    def move(seed: int) -> None:
        for turn in range(TURNS):
            tensor = torch.full((SIZE,), float(seed * TURNS + turn))
            check_values(tensor, subject.download(subject.upload(tensor)), what=f"a tensor of thread {seed}")

    def execute() -> None:
        for turn in range(TURNS):
            (result,) = checked(
                subject.execute(computation, [subject.upload(torch.full((SIZE,), -1.0 - turn))]), computation
            )
            check_values(
                torch.full((SIZE,), -2.0 - 2 * turn), subject.download(result), what="a result beside transfers"
            )

    together([execute, *(lambda seed=seed: move(seed) for seed in range(1, THREADS))])


@LAWS.add(quick=False)
def graphs_are_compiled_while_something_runs(subject: Subject) -> None:
    """One thread compiles while another executes."""
    data = [subject.upload(torch.ones(SIZE)), subject.upload(torch.full((SIZE,), 2.0))]
    computation = subject.compile(sums_and_products(data, subject.backend.get_ir_builder()))

    def compile_more() -> None:
        for size in range(1, 6):
            tensor = torch.ones(size)
            found = subject.run(doubled(subject.upload(tensor), subject.backend.get_ir_builder()))
            check_values(tensor * 2, found[0], what="the result of a graph that was compiled beside an execution")

    def execute() -> None:
        for _ in range(TURNS):
            results = checked(subject.execute(computation, data), computation)
            check_values(torch.full((SIZE,), 3.0), subject.download(results[0]), what="a result beside a compile")

    together([execute, compile_more])


@LOWERED.add()
def a_lowered_graph_is_called_by_several(subject: Subject) -> None:
    """Several threads call one lowered graph at the same time, and each gets its own results."""
    sketch = Sketch()
    x = sketch.parameter(torch.float32, SIZE)
    graph = sketch.graph(sketch.call(aten.tanh.default, sketch.call(aten.add.Tensor, x, x)))
    handle = subject.lowered({"forward": graph})["forward"]

    def call(seed: int) -> None:
        for turn in range(TURNS):
            tensor = torch.linspace(-seed, turn + 1, SIZE)
            (found,) = subject.delegate.execute(handle, [tensor])
            check_values(torch.tanh(tensor + tensor), found, what=f"a result of thread {seed}")

    together([lambda seed=seed: call(seed) for seed in range(THREADS)])  # type: ignore[misc]
