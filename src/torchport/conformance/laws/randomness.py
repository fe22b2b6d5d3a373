"""Random numbers: a seed repeats them, they go on, and the state of the generator can be kept."""

from __future__ import annotations

import torch

from torchport.conformance.case import Laws, require
from torchport.conformance.comparison import check_values
from torchport.conformance.graphs import Sketch, aten
from torchport.conformance.subject import Subject, checked
from torchport.ir.graph import Graph

LAWS = Laws("randomness")


def draws(subject: Subject, count: int = 1) -> Graph:
    """A graph that draws tensors of uniform numbers."""
    sketch = Sketch(subject.backend.get_ir_builder())
    return sketch.graph(*(sketch.call(aten.rand.default, (64,)) for _ in range(count)))


@LAWS.add("random")
def a_seed_repeats_the_numbers(subject: Subject) -> None:
    """The same seed gives the same numbers."""
    computation = subject.compile(draws(subject))
    drawn = []
    for _ in range(2):
        subject.backend.set_rng_seed(7)
        (data,) = checked(subject.execute(computation, []), computation)
        drawn.append(subject.download(data))
    require(torch.equal(*drawn), "two draws after set_rng_seed(7) differ")


@LAWS.add("random")
def another_seed_gives_others(subject: Subject) -> None:
    """Another seed gives other numbers."""
    drawn = []
    for seed in (7, 8):
        subject.backend.set_rng_seed(seed)
        drawn += subject.run(draws(subject))
    require(not torch.equal(*drawn), "the draws after set_rng_seed(7) and set_rng_seed(8) are equal")


@LAWS.add("random")
def the_generator_goes_on(subject: Subject) -> None:
    """Each execution of one computation, and each random node of a graph, draws anew."""
    subject.backend.set_rng_seed(7)
    computation = subject.compile(draws(subject, 2))
    drawn = []
    for _ in range(2):
        drawn += [subject.download(d) for d in checked(subject.execute(computation, []), computation)]
    distinct = {tuple(t.tolist()) for t in drawn}
    require(len(distinct) == 4, f"4 draws gave {len(distinct)} different tensors")


@LAWS.add("random")
def numbers_are_of_the_distribution(subject: Subject) -> None:
    """Uniform numbers are within [0, 1) and spread; a permutation has each index once."""
    sketch = Sketch(subject.backend.get_ir_builder())
    uniform = sketch.call(aten.rand.default, (4096,))
    normal = sketch.call(aten.randn.default, (4096,))
    order = sketch.call(aten.randperm.default, 100)
    subject.backend.set_rng_seed(7)
    u, n, p = subject.run(sketch.graph(uniform, normal, order))
    require(bool(((u >= 0) & (u < 1)).all()), "numbers of aten.rand are outside of [0, 1)")
    # Five standard deviations of the mean of 4096: one in a million.
    require(abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / 4096) ** 0.5, f"the mean of aten.rand is {float(u.mean()):.3f}")
    require(abs(float(n.mean())) < 5 * (1 / 4096) ** 0.5, f"the mean of aten.randn is {float(n.mean()):.3f}")
    require(p.sort().values.tolist() == list(range(100)), "aten.randperm(100) has not each index once")


@LAWS.add("random", "eager_random_stream")
def the_stream_is_eagers(subject: Subject) -> None:
    """For one seed the numbers are those of eager PyTorch on the CPU."""
    subject.backend.set_rng_seed(7)
    found = subject.run(draws(subject, 2))
    generator = torch.Generator().manual_seed(7)
    check_values([torch.rand(64, generator=generator) for _ in range(2)], found)


@LAWS.add("random", "random_state")
def the_state_can_be_kept_and_restored(subject: Subject) -> None:
    """A state that get_rng_state() gave brings the numbers back that followed it."""
    subject.backend.set_rng_seed(7)
    subject.run(draws(subject))
    state = subject.backend.get_rng_state()
    require(state.dtype is torch.uint8 and state.device.type == "cpu", f"the state is {state.dtype} on {state.device}")
    first = subject.run(draws(subject))
    subject.backend.set_rng_state(state)
    check_values(first, subject.run(draws(subject)), what="the draw after set_rng_state()")


@LAWS.add("random", "random_state")
def a_state_that_was_given_does_not_change(subject: Subject) -> None:
    """The state is the caller's: drawing does not write to it."""
    subject.backend.set_rng_seed(7)
    state = subject.backend.get_rng_state()
    kept = state.clone()
    subject.run(draws(subject))
    require(torch.equal(kept, state), "the tensor that get_rng_state() returned changed when numbers were drawn")
