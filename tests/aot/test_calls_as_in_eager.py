"""Calls of lowered modules in which something lies outside of the graph: random numbers, shared memory, classes."""

from __future__ import annotations

import warnings
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from torch import nn

from aot.subjects import spec_of
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.errors import InvalidArgumentError, SavedFileError

Pair = namedtuple("Pair", "a b")


def test_random_numbers_are_those_of_the_seed_as_in_eager() -> None:
    module, x = nn.Dropout(0.5).train(), torch.ones(40)
    lowered = to_backend("interpreter", module, spec_of(x))
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(lowered(x))
        after = torch.rand(1)
        torch.manual_seed(seed)
        assert torch.equal(masks[-1], module(x))
        assert torch.equal(after, torch.rand(1))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


class Writes(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 1


def test_an_input_that_shares_memory_with_one_that_is_written_is_refused() -> None:
    lowered = to_backend("interpreter", Writes(), spec_of(torch.zeros(3), torch.zeros(3)))
    whole = torch.zeros(6)
    for a, b in ((whole[:3], whole[:3]), (whole[:3], whole[2:5]), (whole[2:5], whole[:3])):
        with pytest.raises(InvalidArgumentError, match="writes to input 0, which shares memory with input 1"):
            lowered(a, b)
    assert lowered(whole[:3], whole[3:]).tolist() == [0, 0, 0]
    assert whole.tolist() == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_an_exported_program_is_what_its_graph_does(training: bool) -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)).train(training)
    lowered = to_backend("interpreter", torch.export.export(module, (torch.ones(4, 3),)))
    assert lowered.training is training
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lowered(torch.ones(4, 3))


class Swaps(nn.Module):
    def forward(self, pair: Pair) -> Pair:
        return Pair(pair.b, pair.a + 1)


def test_a_named_tuple_is_taken_after_loading(tmp_path: Path) -> None:
    pair = Pair(torch.ones(3), torch.zeros(1))
    to_backend("interpreter", Swaps(), spec_of(pair)).save(tmp_path / "m.tport")
    loaded = load(tmp_path / "m.tport")
    result = loaded(pair)
    assert result._fields == ("a", "b")
    torch.testing.assert_close(tuple(result), tuple(Swaps()(pair)))
    with pytest.raises(InvalidArgumentError):
        loaded(namedtuple("Pair", "a c")(*pair))


class Own:
    """A class of somebody's, registered with PyTorch, and neither a mapping nor a dataclass."""

    def __init__(self, y: torch.Tensor) -> None:
        self.y = y


torch.utils._pytree.register_pytree_node(
    Own, lambda own: ([own.y], None), lambda values, context: Own(*values), serialized_type_name="Own"
)


class ReturnsOwn(nn.Module):
    def forward(self, x: torch.Tensor) -> Own:
        return Own(x + 1)


def test_a_class_that_a_file_has_no_form_for_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", ReturnsOwn(), spec_of(torch.ones(2)))
    assert type(lowered(torch.ones(2))) is Own
    with pytest.raises(SavedFileError, match=r"forward: .* in a Own have no form in a file; use tuples"):
        lowered.save(tmp_path / "m.tport")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_torchscript_module_is_lowered() -> None:
    x = torch.ones(2, 4)
    traced = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (x,))
    torch.testing.assert_close(to_backend("interpreter", traced, spec_of(x))(x), traced(x).detach())
