"""Sizes have the names that the user gave them, in messages and in files."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import torchport_runtime
from aot.subjects import again
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.to_backend import to_backend
from torchport.errors import InvalidArgumentError

Pair = namedtuple("Pair", "first second")


class Several(nn.Module):
    def forward(self, a: torch.Tensor, *rest: Any, nested: Any, last: torch.Tensor) -> torch.Tensor:
        return a.sum() + rest[0].sum() + nested["x"][0].sum() + nested["pair"].second.sum() + last.sum()


def test_each_size_has_the_name_that_was_given_wherever_it_is(tmp_path: Path) -> None:
    x = torch.ones(3, 4)
    nested = {"x": [x.clone()], "pair": Pair(x.clone(), x.clone())}
    n, m, width, k, z = (Dim(name, max=64) for name in ("n", "m", "width", "k", "z"))
    shapes = {
        "a": {0: n},
        "rest": ((m, None),),
        "last": [z, None],
        "nested": {"pair": Pair(None, {0: k}), "x": [{0: n, 1: width}]},
    }
    spec = CompileSpec((x, x), {"last": x.clone(), "nested": nested}, shapes)
    lowered = to_backend("interpreter", Several(), {"forward": spec})
    loaded = again(lowered, tmp_path)
    text = str(loaded._methods["forward"].inputs)
    for wanted in ("('n', 4)", "('m', 4)", "('n', 'width')", "('k', 4)", "('z', 4)"):
        assert wanted in text
    given = {"pair": Pair(torch.ones(3, 4), torch.ones(7, 4)), "x": [torch.ones(6, 9)]}
    assert loaded(torch.ones(6, 4), torch.ones(2, 4), nested=given, last=torch.ones(5, 4)) == 24 + 8 + 54 + 28 + 20
    with pytest.raises(InvalidArgumentError, match="captured for z from"):
        loaded(torch.ones(6, 4), torch.ones(2, 4), nested=given, last=torch.ones(65, 4))
    assert list(torchport_runtime.load(tmp_path / "m.tport")._methods) == ["forward"]


@pytest.mark.parametrize("name", ["s1", "e0", "min", "max"])
def test_a_name_that_means_something_else_in_a_graph_is_replaced(tmp_path: Path, name: str) -> None:
    class Doubles(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x]).reshape(-1)[: y.shape[0]]

    x = torch.arange(8.0).reshape(2, 4)
    spec = CompileSpec((x, torch.ones(3)), None, ({0: Dim(name, min=2, max=9)}, {0: Dim("other", min=2, max=9)}))
    loaded = again(to_backend("interpreter", Doubles(), {"forward": spec}), tmp_path)
    assert set(loaded._methods["forward"].symbols) == {"s0", "other"}
    assert loaded(torch.ones(3, 4), torch.ones(5)).tolist() == [1] * 5
