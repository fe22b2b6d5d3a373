"""Programs on the lazy device: barriers, writes, reads and errors, with the backend behind them."""

from __future__ import annotations

import gc

import torch

from torchport import metrics
from torchport.backend import LazyTensor
from torchport.config import settings
from torchport.conformance.case import Laws, NotApplicable, Violation, require
from torchport.conformance.comparison import check_values
from torchport.conformance.graphs import aten
from torchport.conformance.laws.failures import MESSAGE, failing_operator
from torchport.conformance.laws.threads import together
from torchport.conformance.subject import Subject
from torchport.errors import ExecutionError
from torchport.ir.call import Call, operand
from torchport.ir.node import Node
from torchport.ir.shape import Shape
from torchport.lazy.sync import sync

LAWS = Laws("programs")
D = settings.device_name


@LAWS.add()
def steps_follow_each_other(subject: Subject) -> None:
    """Steps that are launched without waiting run in their order, each on what the one before gave."""
    on_cpu = torch.arange(12.0).reshape(3, 4)
    x = on_cpu.to(D)
    for step in range(20):
        x.mul_(1.01).add_(step)
        x[step % 3] += 1
        sync()
        on_cpu.mul_(1.01).add_(step)
        on_cpu[step % 3] += 1
    check_values(on_cpu, x.cpu())


@LAWS.add()
def views_and_writes_are_seen(subject: Subject) -> None:
    """A write through a view is seen by its base and by other views, before and after a barrier."""

    def program(device: str) -> list[torch.Tensor]:
        base = torch.zeros(4, 6, device=device)
        column, rows = base[:, 2], base.view(2, 12)
        column += torch.arange(4.0, device=device)
        sync()
        rows[1].mul_(2)
        base[1::2, 3:] = 7
        return [t.cpu() for t in (base, column, rows)]

    check_values(program("cpu"), program(D))


@LAWS.add()
def what_was_computed_stays(subject: Subject) -> None:
    """Tensors that are alive keep their values while later steps run in the memory of others."""
    kept, wanted = [], []
    x, y = torch.ones(8, device=D), torch.ones(8)
    for step in range(6):
        x, y = x * 2 + step, y * 2 + step
        if step % 2:
            kept.append(x)
            wanted.append(y.clone())
        x.add_(1)
        y.add_(1)
        sync()
    # In-place: what was kept is the same tensor, and follows until it is bound to another one.
    check_values([w + 1 for w in wanted], [k.cpu() for k in kept])


@LAWS.add()
def an_input_keeps_its_value(subject: Subject) -> None:
    """A tensor that a step reads, and another one that shares its values, are the same afterwards."""
    x = torch.arange(6.0, device=D)
    alias = x.detach().view(2, 3)
    copy = x.clone()
    sync()
    for _ in range(3):
        y = x + 1
        y.mul_(3)
        copy.add_(1)
        sync()
    wanted = torch.arange(6.0)
    check_values([wanted, wanted.view(2, 3), wanted + 3], [x.cpu(), alias.cpu(), copy.cpu()])


@LAWS.add()
def nothing_is_compiled_twice(subject: Subject) -> None:
    """A loop whose numbers change compiles in its first steps only."""
    w = torch.ones(4, 3, device=D)
    x = torch.ones(2, 4, device=D)
    counts = []
    for step in range(6):
        w = w - (0.1 / (step + 1)) * (x.t() @ torch.tanh(x @ w))
        sync()
        counts.append(metrics.counter_value("UncachedCompile"))
    require(counts[-1] == counts[2], f"steps 4 to 6 of a loop compiled {counts[-1] - counts[2]} graphs")


@LAWS.add("symbolic_sizes")
def sizes_may_change(subject: Subject) -> None:
    """Batches of many sizes give the right results."""
    w = torch.linspace(-1, 1, 12).reshape(4, 3)
    on_device = w.to(D)
    for rows in (3, 5, 8, 3, 13, 1):
        x = torch.linspace(0, 1, rows * 4).reshape(rows, 4)
        check_values((x @ w).relu().sum(0), (x.to(D) @ on_device).relu().sum(0).cpu(), what=f"for {rows} rows")


@LAWS.add()
def an_error_is_told_once_and_spoils_nothing_else(subject: Subject) -> None:
    """A computation that fails raises where its result is read; other tensors keep their values."""
    shape = Shape(torch.float32, (3,))
    answer = subject.backend.supports(Node(Call(failing_operator(), (operand(0),), (), (shape,), (shape,))))
    if not answer:
        raise NotApplicable(f"the backend refuses the operator that fails: {answer.reason}")
    good = torch.ones(3, device=D)
    other = good + 1
    sync()
    bad = failing_operator()(-good)
    sync()
    later = other + good
    try:
        found = bad.cpu()
    except (ExecutionError, RuntimeError) as error:
        require(MESSAGE in str(error), f"the operator's own text is not in the error: {error}")
    else:
        raise Violation(f"the result of an operator that fails was read: {found.tolist()}")
    wanted = [torch.ones(3), torch.full((3,), 2.0), torch.full((3,), 3.0)]
    check_values(wanted, [good.cpu(), other.cpu(), later.cpu()], what="a tensor beside the failure")


@LAWS.add("random")
def a_seed_repeats_a_program(subject: Subject) -> None:
    """torch.manual_seed repeats the random numbers of a program, and dropout masks are drawn once."""

    def program() -> list[torch.Tensor]:
        torch.manual_seed(3)
        x = torch.randn(64, device=D)
        kept = torch.nn.functional.dropout(x, 0.5)
        sync()
        return [x.cpu(), kept.cpu(), kept.cpu()]

    with torch.random.fork_rng(devices=[]):
        first, second = program(), program()
    check_values(first, second, what="after the same seed, a tensor")
    check_values(first[1], first[2], what="a tensor that is read twice")


@LAWS.add()
def threads_record_at_once(subject: Subject) -> None:
    """Several threads use the device at the same time, and each gets its own results."""

    def work(seed: int) -> None:
        x, y = torch.full((32,), float(seed), device=D), torch.full((32,), float(seed))
        for _ in range(5):
            x, y = torch.sin(x) + seed, torch.sin(y) + seed
            sync()
        check_values(y, x.cpu(), what=f"the result of thread {seed}")

    together([lambda seed=seed: work(seed) for seed in range(1, 5)])  # type: ignore[misc]


@LAWS.add(quick=False)
def memory_does_not_grow(subject: Subject) -> None:
    """Steps leave nothing behind: neither lazy tensors, nor bytes of the device, nor objects."""
    x = torch.ones(64, 64, device=D)

    def steps(count: int) -> tuple[int, float, int]:
        nonlocal x
        for _ in range(count):
            x = aten.tanh.default(x + 0.5)
            sync()
        x.cpu()
        gc.collect()
        objects = gc.get_objects()
        lazy = sum(type(o) is LazyTensor for o in objects)
        return lazy, subject.backend.get_metrics().get("bytes_held", 0.0), len(objects)

    steps(20)
    before, after = steps(5), steps(60)
    require(after[0] <= before[0], f"60 steps left {after[0] - before[0]} lazy tensors")
    require(after[1] <= before[1], f"60 steps left {after[1] - before[1]:.0f} bytes on the device")
    require(after[2] < before[2] + 60, f"60 steps left {after[2] - before[2]} objects, one a step or more")
