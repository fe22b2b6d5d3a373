"""Arguments and results in classes: saved by name, and of their class where it is imported when the file is loaded."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import torchport_runtime
from aot.subjects import spec_of
from runtime.files import members_of, write_members
from torchport.aot.lowered_module import LoweredModule
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.errors import InvalidArgumentError, SavedFileError

X = torch.arange(6.0).reshape(2, 3)


class Output(OrderedDict):  # type: ignore[type-arg]
    """What transformers' results are: a mapping with attributes."""

    def __getattr__(self, name: str) -> object:
        return self[name]


pytree.register_pytree_node(
    Output,
    lambda d: (list(d.values()), list(d.keys())),
    lambda values, keys: Output(zip(keys, values, strict=True)),
    serialized_type_name="tests.Output",
)


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor | None = None
    scale: torch.Tensor | None = None


torch.export.register_dataclass(Batch, serialized_type_name="tests.Batch")


class Classes(nn.Module):
    def forward(self, batch: Batch) -> object:
        assert batch.scale is not None
        return Output(logits=batch.ids * batch.scale, rest=[Batch(batch.ids + 1)])


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> object:
        return torch.max(x, 1), torch.sort(x)


def saved(module: nn.Module, *args: object, path: Path) -> LoweredModule:
    to_backend("interpreter", module, spec_of(*args)).save(path)
    return load(path)


def test_return_types_of_torch_come_back_and_are_named_tuples_without_it(tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    largest, ordered = saved(Largest(), X, path=path)(X)
    assert isinstance(largest, torch.return_types.max)
    assert isinstance(ordered, torch.return_types.sort)
    torch.testing.assert_close(tuple(largest), tuple(X.max(1)))
    found, _ = torchport_runtime.load(path)(X.numpy())
    assert found._fields == ("values", "indices")
    np.testing.assert_array_equal(found.values, X.max(1).values.numpy())


def test_mappings_and_dataclasses_come_back(tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    batch = Batch(X, scale=torch.tensor(2.0))
    loaded = saved(Classes(), batch, path=path)
    result = loaded(batch)
    assert type(result) is Output
    assert type(result.rest[0]) is Batch
    assert result.rest[0].mask is None
    torch.testing.assert_close(result.logits, X * 2)
    torch.testing.assert_close(result.rest[0].ids, X + 1)
    with pytest.raises(InvalidArgumentError, match="was captured with arguments of the form"):
        loaded(Batch(X, mask=X, scale=torch.tensor(2.0)))
    loaded.save(tmp_path / "again.tport")
    assert path.read_bytes() == (tmp_path / "again.tport").read_bytes()
    program = torchport_runtime.load(path)
    found = program(Batch(X.numpy(), None, np.float32(2)))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found["logits"], (X * 2).numpy())
    assert type(found["rest"][0]).__name__ == "Batch"
    assert found["rest"][0].mask is None


def with_text(path: Path, old: str, new: str) -> None:
    members = members_of(path)
    manifest = json.dumps(json.loads(members["manifest.json"]))
    assert old in manifest
    write_members(path, {**members, "manifest.json": manifest.replace(old, new).encode()})


def test_a_class_that_is_not_imported_is_a_dict_or_a_named_tuple_and_nothing_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    batch = Batch(X, scale=torch.tensor(2.0))
    saved(Classes(), batch, path=path)
    with_text(path, f"{__name__}:", "antigravity:")
    loaded = load(path)
    result = loaded(batch)
    assert "antigravity" not in sys.modules
    assert type(result) is dict
    torch.testing.assert_close(result["logits"], X * 2)
    assert result["rest"][0]._fields == ("ids", "mask", "scale")
    assert result["rest"][0].mask is None
    assert list(loaded(loaded(batch)["rest"][0]._replace(scale=torch.tensor(0.0)))["logits"].unique()) == [0]


@pytest.mark.parametrize("name", ["os:system", "torch:nn.Linear", "lazy:it", "builtins:int", ":", "pathlib:Path"])
def test_a_name_of_anything_else_is_never_called(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = lambda name: pytest.fail("a module was asked for what it has not")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    path = tmp_path / "m.tport"
    batch = Batch(X, scale=torch.tensor(2.0))
    saved(Classes(), batch, path=path)
    with_text(path, f"{__name__}:Output", name)
    assert isinstance(load(path)(batch), dict)


def test_a_class_that_takes_other_items_by_now_is_an_error_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    saved(Classes(), Batch(X, scale=torch.tensor(2.0)), path=path)
    with_text(path, '"mask"', '"width"')
    with pytest.raises(SavedFileError, match=r"Batch does not take .*width.* here"):
        load(path)
    to_backend("interpreter", Largest(), spec_of(X)).save(path)
    with_text(path, '"values"', '"width"')
    with pytest.raises(SavedFileError, match=r"this PyTorch has no torch\.return_types\.max of width, indices"):
        load(path)


def test_keys_of_a_dict_may_come_in_another_order_as_in_eager(tmp_path: Path) -> None:
    class Subtracts(nn.Module):
        def forward(self, d: dict[str, torch.Tensor]) -> torch.Tensor:
            return d["a"] - d["b"]

    path = tmp_path / "m.tport"
    a, b = torch.ones(2), torch.zeros(2)
    lowered = to_backend("interpreter", Subtracts(), spec_of({"a": a, "b": b}))
    lowered.save(path)
    for module in (lowered, load(path)):
        assert module({"b": b, "a": a}).tolist() == [1, 1]
        assert module(OrderedDict(b=b, a=a)).tolist() == [1, 1]
        with pytest.raises(InvalidArgumentError):
            module({"a": a, "c": b})
    assert torchport_runtime.load(path)({"b": b.numpy(), "a": a.numpy()}).tolist() == [1, 1]


class Returns(nn.Module):
    def __init__(self, make: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> object:
        return self.make(x)


def test_dicts_of_other_kinds_come_back_as_dicts(tmp_path: Path) -> None:
    def make(x: torch.Tensor) -> object:
        found = defaultdict(list, a=x + 1)
        return found, OrderedDict(b=x + 2)

    first, second = saved(Returns(make), X, path=tmp_path / "m.tport")(X)
    torch.testing.assert_close(first["a"], X + 1)
    torch.testing.assert_close(second["b"], X + 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: {(1, 2): x + 1}, r"a dict with the key \(1, 2\) has no form in a file; use texts or whole numbers"),
        (lambda x: (x + 1, float("inf")), "result 1 is inf; finite numbers, texts, lists and dicts are saved"),
    ],
)
def test_what_has_no_form_in_a_file_is_said_when_it_is_saved(
    tmp_path: Path, make: Callable[[torch.Tensor], object], message: str
) -> None:
    lowered = to_backend("interpreter", Returns(make), spec_of(X))
    with pytest.raises(SavedFileError, match=message):
        lowered.save(tmp_path / "m.tport")
    assert not list(tmp_path.iterdir())
