"""What can be captured, and that what cannot says where and what to do."""

from __future__ import annotations

import copy
import functools
import re
import types
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.export import Dim

import torchport
import torchport_runtime
from aot.subjects import Blocks, again, spec_of
from torchport import CompileSpec, to_backend
from torchport.errors import CaptureError, InvalidArgumentError
from torchport.ir.call import PARTITION

N = Dim("n", min=2, max=8)


class Halves(nn.Module):
    def forward(self, x):
        return x.reshape(-1, 2)[:, 0] * x.shape[0], x.shape[0] // 2


class Odd(nn.Module):
    def forward(self, x, y):
        return x[1::2] * 2 + y


def test_a_size_that_is_twice_a_symbol_binds_it(tmp_path: Path) -> None:
    spec = CompileSpec((torch.ones(6),), dynamic_shapes=({0: 2 * N},))
    lowered = to_backend("interpreter", Halves(), {"forward": spec})
    loaded = again(lowered, tmp_path)
    in_numpy = torchport_runtime.load(tmp_path / "m.tport")
    for size in (4, 10, 16):
        x = torch.arange(float(size))
        wanted, count = Halves()(x)
        for module in (lowered, loaded):
            found, number = module(x)
            assert torch.equal(wanted, found)
            assert number == count
        found, number = in_numpy(x.numpy())
        assert numpy.array_equal(wanted.numpy(), found)
        assert number == count
    for size in (7, 18):
        for module in (lowered, loaded):
            with pytest.raises(InvalidArgumentError, match="captured for"):
                module(torch.ones(size))
        with pytest.raises(InvalidArgumentError, match="captured for"):
            in_numpy(numpy.ones(size, numpy.float32))


def test_a_lowered_module_with_such_a_size_is_lowered_inside_another() -> None:
    spec = CompileSpec((torch.ones(6),), dynamic_shapes=({0: 2 * N},))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = to_backend("interpreter", Halves(), {"forward": spec})

        def forward(self, x):
            return self.inner(x)[0] + 1

    lowered = to_backend("interpreter", Outer(), {"forward": spec})
    x = torch.arange(10.0)
    assert torch.equal(Halves()(x)[0] + 1, lowered(x))


@pytest.mark.parametrize("is_first", [False, True])
def test_a_size_that_follows_from_another_inputs_is_checked_against_it(is_first: bool) -> None:
    class Swapped(nn.Module):
        def forward(self, y, x):
            return Odd()(x, y)

    module, shapes = (Odd(), ({0: 2 * N + 1}, {0: N})) if is_first else (Swapped(), ({0: N}, {0: 2 * N + 1}))

    def arguments(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x, y) if is_first else (y, x)

    example = arguments(torch.ones(7, 4), torch.ones(3, 4))
    lowered = to_backend("interpreter", module, {"forward": CompileSpec(example, dynamic_shapes=shapes)})
    x, y = torch.randn(9, 4), torch.randn(4, 4)
    assert torch.equal(Odd()(x, y), lowered(*arguments(x, y)))
    with pytest.raises(InvalidArgumentError, match=re.escape("f32[(1 + (2 * n)), 4]")):
        lowered(*arguments(x, torch.randn(3, 4)))


class Chooses(nn.Module):
    """One ``torch.cond`` inside another, with weights, two results and a predicate with a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, y):
        def high(x):
            return self.linear(x) + 1, x * 2

        def low(x):
            return torch.cond(
                x.max().reshape(1) > -1, lambda x: x * 3, lambda x: x.to(torch.float64).to(torch.float32) * 4, (x,)
            ), x.clone()

        self.calls += 1
        a, b = torch.cond(x.sum() > 0, high, low, (x,))
        return a + y, b


def test_conditions_on_values_are_captured(tmp_path: Path) -> None:
    module = Chooses().eval()
    x = torch.ones(3, 4)
    spec = CompileSpec((x, x), dynamic_shapes=({0: N}, {0: N}))
    lowered = to_backend("interpreter", module, {"forward": spec})
    loaded = again(lowered, tmp_path)
    in_numpy = torchport_runtime.load(tmp_path / "m.tport")
    for x in (torch.ones(5, 4), -torch.ones(2, 4), torch.full((3, 4), -0.5)):
        with torch.no_grad():
            wanted = copy.deepcopy(module)(x, x)
        for found in (lowered(x, x), loaded(x, x), map(torch.from_numpy, in_numpy(x.numpy(), x.numpy()))):
            torch.testing.assert_close(tuple(found), wanted)
    assert lowered.calls == 3


def test_a_program_with_conditions_stays_as_it_is() -> None:
    x = torch.ones(3, 4)
    program = torch.export.export(Chooses().eval(), (x, x), strict=False)
    before = str(program.graph)
    to_backend("interpreter", program)
    assert before == str(program.graph)


def test_a_condition_on_a_size_is_refused_with_what_works() -> None:
    class OnSize(nn.Module):
        def forward(self, x):
            return torch.cond(x.shape[0] > 4, lambda x: x + 1, lambda x: x - 1, (x,))

    class OnTensor(nn.Module):
        def forward(self, x):
            return torch.cond(torch.tensor(x.shape[0]) > 4, lambda x: x + 1, lambda x: x - 1, (x,))

    specs = {"forward": CompileSpec((torch.ones(3),), dynamic_shapes=({0: N},))}
    with pytest.raises(CaptureError, match=r"Make it a tensor, such as torch\.tensor\(x\.shape\[0\]\) > 4"):
        to_backend("interpreter", OnSize(), specs)
    lowered = to_backend("interpreter", OnTensor(), specs)
    assert torch.equal(torch.zeros(3), lowered(torch.ones(3)))
    assert torch.equal(torch.full((5,), 2.0), lowered(torch.ones(5)))


def test_a_loop_over_values_is_refused_with_what_to_write() -> None:
    class Loops(nn.Module):
        def forward(self, x):
            step = torch.ops.higher_order.while_loop
            return step(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x), ())

    with pytest.raises(CaptureError, match="while_loop runs graphs of its own"):
        to_backend("interpreter", Loops(), spec_of(torch.ones(3)))


def test_attention_whose_heads_are_strided_is_captured() -> None:
    """As GPT-2 has it, which torch 2.13 cannot decompose as a fused operator."""

    class Attention(nn.Module):
        def forward(self, x):
            q, k, v = (t.view(2, 7, 2, 8).transpose(1, 2) for t in x.split(16, dim=2))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(2, 7, 16).view(-1, 16)

    x = torch.randn(2, 7, 48)
    torch.testing.assert_close(to_backend("interpreter", Attention(), spec_of(x))(x), Attention()(x))


class Kinds(nn.Module):
    """Every kind of method, and every kind of tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.register_buffer("count", torch.zeros(3))
        self.unused = nn.Linear(3, 3)
        self.of_instance = lambda x: x * self.weight

        def counts(self, x):
            self.count.add_(1)
            return x * self.weight * 3 + self.count

        self.bound = types.MethodType(counts, self)
        self.partial = functools.partial(lambda factor, x: x * factor, 3.0)

    def forward(self, x):
        return x * self.weight + self.passing + torch.tensor([1.0, 2.0, 3.0])

    @staticmethod
    def static(x):
        return x + 1

    @classmethod
    def of_class(cls, x, *, by=2):
        return x + by


def test_every_kind_of_method_is_lowered(tmp_path: Path) -> None:
    module, x = Kinds(), torch.randn(3)
    names = ("forward", "static", "of_class", "of_instance", "bound", "partial")
    lowered = to_backend("interpreter", module, {name: CompileSpec((x,)) for name in names})
    loaded = again(lowered, tmp_path)
    with torch.no_grad():
        for name in names:
            wanted = getattr(module, name)(x)
            assert torch.equal(wanted, getattr(lowered, name)(x)), name
            assert torch.equal(wanted, getattr(loaded, name)(x)), name


def test_a_state_dict_of_the_module_fits_the_lowered_one(tmp_path: Path) -> None:
    module, x = Kinds(), torch.ones(3)
    lowered = to_backend("interpreter", module, spec_of(x))
    for one in (lowered, again(lowered, tmp_path), copy.deepcopy(lowered)):
        assert list(module.state_dict()) == list(one.state_dict())
        changed = Kinds()
        nn.init.constant_(changed.weight, 5)
        one.load_state_dict(changed.state_dict())
        assert torch.equal(changed(x), one(x))
        assert torch.equal(changed.unused.weight, one.unused.weight)
        module.load_state_dict(one.state_dict())


def test_a_program_keeps_the_names_of_nested_arguments(tmp_path: Path) -> None:
    class Nest(nn.Module):
        def forward(self, first, pair, *, scale=2):
            return first["a"] * scale + pair[0]

    x = torch.ones(3)
    program = torch.export.export(Nest(), ({"a": x}, (x,)), {"scale": 3})
    torch.export.save(program, tmp_path / "nest.pt2")
    for source in (program, tmp_path / "nest.pt2"):
        lowered = to_backend("interpreter", source)
        assert str(lowered.forward.signature) == "(first, pair, *, scale)"
        assert torch.equal(torch.full((3,), 4.0), lowered(pair=(x,), first={"a": x}, scale=3))


def test_a_captured_condition_and_its_branches_are_one_part() -> None:
    lowered = to_backend("interpreter", Chooses().eval(), spec_of(torch.ones(3, 4), torch.ones(3, 4)))
    graph = torchport.as_graph_function(lowered.forward).graph
    assert [PARTITION] == [n.op for n in graph.nodes if not n.is_device_data]
    assert "_assert" not in bytes(lowered._methods["forward"].parts["p0"].payload).decode()


class OnValues(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Item(nn.Module):
    def forward(self, x):
        return x[: int(x.sum())]


class NonZero(nn.Module):
    def forward(self, x):
        return x.nonzero()


class Raises(nn.Module):
    def forward(self, x):
        raise KeyError("k")


class Opaque(nn.Module):
    def forward(self, x):
        return map(abs, x)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (OnValues(), r"at \S*test_capture\.py:\d+\nA Python branch, a size or a number depends on the values"),
        (Item(), r"at \S*test_capture\.py:\d+\nA Python branch, a size or a number depends on the values"),
        (NonZero(), r"(?s)test_capture\.py:\d+.*not known before it runs\nA Python branch, a size or a number"),
        (Raises(), r"KeyError: 'k'\n  at \S*test_capture\.py:\d+\nCall it in eager with these example arguments"),
        (Opaque(), r"(?s)in output.*\nArguments and results are tensors, numbers"),
    ],
)
def test_a_refusal_says_where_and_what_to_do(module: nn.Module, text: str) -> None:
    with pytest.raises(CaptureError, match=text):
        to_backend("interpreter", module, spec_of(torch.ones(3)))


@pytest.mark.parametrize(
    "shapes", [{"inptu": {0: N}}, ({0: N}, {0: N}), ({0: "n"},), ({0: Dim("m", min=5, max=8)},), ({1: N},)]
)
def test_sizes_that_cannot_vary_so_say_what_dynamic_shapes_are(shapes: object) -> None:
    specs = {"forward": CompileSpec((torch.ones(3, 6),), dynamic_shapes=shapes)}
    with pytest.raises(CaptureError, match="\nCorrect dynamic_shapes: for each argument"):
        to_backend("interpreter", Blocks().eval(), specs)
