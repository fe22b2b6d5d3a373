"""Lowered modules in other modules: lowered, trained, and by themselves (case 28)."""

from __future__ import annotations

import copy

import torch
from torch import nn

from aot.subjects import Block, Cache, Switched, registered, spec_of
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.to_backend import to_backend

X = torch.randn(3, 6)


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.inner = inner

    def forward(self, x):
        return torch.sin(self.inner(self.before(x)))


def test_a_lowered_module_inside_a_lowered_one_keeps_its_backend() -> None:
    block = Block().eval()
    outer = Outer(block).eval()
    inside, outside = Switched(), Switched()
    with registered("inside", inside), registered("outside", outside):
        lowered = copy.copy(outer)
        lowered._modules = {"before": outer.before, "inner": to_backend("inside", block, spec_of(X))}
        whole = to_backend("outside", lowered.eval(), spec_of(X))
        assert "inner.norm.weight" in whole.state_dict()
        torch.testing.assert_close(whole(X), outer(X).detach())
        assert inside.calls.count("execute") == 1
        assert outside.calls.count("execute") == 2
        assert "inner0.p0 on inside: " in whole.explain()
        assert "p1 on outside: " in whole.explain()


def test_sizes_of_an_inner_module_follow_those_of_the_outer_one() -> None:
    class Flat(nn.Module):
        def forward(self, x):
            return (x + 1).reshape(x.shape[0] * 2, 3)

    batch = torch.export.Dim("batch", min=2, max=50)
    spec = {"forward": CompileSpec((X,), dynamic_shapes={"x": {0: batch}})}
    outer = Outer(Flat())
    with registered("inside", Switched()):
        lowered = Outer(to_backend("inside", Flat(), spec))
        lowered.before = outer.before
        whole = to_backend("interpreter", lowered, spec)
    for n in (2, 5):
        x = torch.randn(n, 6)
        torch.testing.assert_close(whole(x), outer(x).detach())


def test_state_of_an_inner_module_is_state_of_the_outer_one() -> None:
    class Steps(nn.Module):
        def __init__(self, cache: nn.Module) -> None:
            super().__init__()
            self.cache = cache

        def forward(self, x):
            return self.cache(x) + self.cache(2 * x)

    reference = Steps(Cache().eval()).eval()
    x = torch.randn(4)
    inner = to_backend("interpreter", reference.cache, spec_of(x))
    whole = to_backend("interpreter", Steps(inner).eval(), spec_of(x))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(whole(x), reference(x))
    assert int(whole.cache.position) == 4
    assert int(inner.position) == 0


def test_a_lowered_module_is_a_part_of_one_that_is_trained() -> None:
    inner = to_backend("interpreter", Block().eval(), spec_of(X))
    outer = Outer(inner)
    outer.head = nn.Linear(6, 1)
    outer(X)
    loss = outer.head(inner(X)).sum()
    loss.backward()
    assert outer.head.weight.grad is not None
    assert {"before.weight", "inner.up.weight"} <= set(outer.state_dict())
