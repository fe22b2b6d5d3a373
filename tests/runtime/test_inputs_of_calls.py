"""Inputs that no capture can foresee: huge and foreign numbers, and arrays that cannot be written to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchport_runtime
from aot.subjects import again, spec_of
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.errors import InvalidArgumentError


class Adds(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x + n


@pytest.mark.parametrize("load_file", [load, torchport_runtime.load])
def test_whole_numbers_of_any_kind_and_size(tmp_path: Path, load_file: Callable[[Path], Any]) -> None:
    spec = CompileSpec((torch.zeros(2, dtype=torch.int64), 5), None, (None, torch.export.Dim.DYNAMIC))
    to_backend("interpreter", Adds(), {"forward": spec}).save(tmp_path / "m.tport")
    module = load_file(tmp_path / "m.tport")
    x: Any = torch.zeros(2, dtype=torch.int64)
    x = x if load_file is load else x.numpy()
    for n in (7, np.int64(7), np.uint8(7)):
        assert module(x, n).tolist() == [7, 7]
    assert module(x, 2**62).tolist() == [2**62] * 2
    with pytest.raises(InvalidArgumentError, match=rf"forward: input 1 is {2**70}; .* to {2**63 - 1}"):
        module(x, 2**70)
    with pytest.raises(InvalidArgumentError, match=r"forward: input 1 is -1; the method was captured for .* upwards"):
        module(x, -1)
    for wrong in ("7", 7.0, True, None, x):
        with pytest.raises(InvalidArgumentError, match=r"input 1 is .*; a whole number is wanted"):
            module(x, wrong)


class Writes(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        kept = a.clone()
        a.add_(b)
        return kept


class Swaps(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)
        return a[:1]


def test_arrays_that_cannot_be_written_to_are_refused_before_anything_is_changed(tmp_path: Path) -> None:
    again(to_backend("interpreter", Writes(), spec_of(torch.zeros(3), torch.zeros(3))), tmp_path)
    program = torchport_runtime.load(tmp_path / "m.tport")
    one, whole = np.ones(3, np.float32), np.zeros(5, np.float32)
    sealed = np.zeros(3, np.float32)
    sealed.flags.writeable = False
    spread = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (3,), (0,))
    for a, b, message in (
        (sealed, one, "which is read-only"),
        (np.broadcast_to(np.float32(1), 3), one, "which is read-only"),
        (spread, one, "of which several elements are one place in memory"),
        (whole[:3], whole[2:], "which shares memory with input 1"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"writes to input 0, {message}. Pass a copy of it"):
            program(a, b)
    assert program(whole[:3], one).tolist() == [0, 0, 0]
    assert whole.tolist() == [1, 1, 1, 0, 0]
    tensor = torch.zeros(3)  # which comes by DLPack, and is written to
    program(tensor, one)
    assert tensor.tolist() == [1, 1, 1]


def test_a_scalar_of_numpy_cannot_be_written_to(tmp_path: Path) -> None:
    again(to_backend("interpreter", Writes(), spec_of(torch.zeros(()), torch.zeros(()))), tmp_path)
    program = torchport_runtime.load(tmp_path / "m.tport")
    with pytest.raises(InvalidArgumentError, match="writes to input 0, which is a scalar"):
        program(np.float32(1), np.float32(1))


def test_inputs_that_change_places(tmp_path: Path) -> None:
    loaded = again(to_backend("interpreter", Swaps(), spec_of(torch.zeros(2), torch.zeros(2))), tmp_path)
    program = torchport_runtime.load(tmp_path / "m.tport")
    for call, make in ((loaded, torch.tensor), (program, lambda x: np.array(x, np.float32))):
        a, b = make([1.0, 2.0]), make([3.0, 4.0])
        assert call(a, b).tolist() == [3]
        assert (a.tolist(), b.tolist()) == ([3, 4], [1, 2])


def test_tensors_that_eager_does_not_write_to_are_refused() -> None:
    lowered = to_backend("interpreter", Writes(), spec_of(torch.zeros(3), torch.zeros(3)))
    one = torch.ones(3)
    with torch.inference_mode():
        inferred = torch.zeros(3)
        assert lowered(inferred, one).tolist() == [0, 0, 0]
        assert inferred.tolist() == [1, 1, 1]
    leaf = torch.zeros(3, requires_grad=True)
    for tensor, message in (
        (torch.zeros(1).expand(3), "of which several elements are one place in memory"),
        (inferred, "which was made in inference mode"),
        (leaf, "a leaf that requires grad"),
    ):
        with pytest.raises(RuntimeError):
            Writes()(tensor, one)
        with pytest.raises(InvalidArgumentError, match=f"forward writes to input 0, {message}.*Pass a clone of it"):
            lowered(tensor, one)
    with torch.no_grad():
        lowered(leaf, one)
    assert leaf.tolist() == [1, 1, 1]
