"""That mistakes of a call of ``to_backend`` or of a lowered module are named, with what to do."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchport
from aot.subjects import Blocks, Switched, registered, spec_of
from torchport import CompileSpec, to_backend
from torchport.errors import CompileSpecError, DamagedFileError, ExecutionError, InvalidArgumentError
from torchport_runtime import manifest, saved_module

X = torch.ones(3, 6)


class Clashes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("backend", torch.ones(4))
        self.explain = nn.Linear(4, 4)  # type: ignore[assignment]
        self.inner = Blocks()

    def forward(self, x):
        return self.explain(x) + self.backend

    def save(self, x):
        return x


def mistakes(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(CompileSpecError) as raised:
        to_backend(*args, **kwargs)
    return str(raised.value)


def test_names_that_a_lowered_module_has_itself_are_refused() -> None:
    specs = {name: CompileSpec((X,)) for name in ("forward", "save", "parameters", "port", "__call__", "inner")}
    text = mistakes("interpreter", Clashes(), specs)
    for name in ("save", "parameters", "port", "__call__"):
        assert f"'{name}': a lowered module has an attribute of this name itself" in text
    assert "Clashes has forward, save." in text
    assert "'inner' is a submodule, no method" in text
    assert "attributes of its own that are called 'backend', 'explain'; give the submodules, parameters" in text


def test_such_names_of_an_exported_program_are_refused() -> None:
    x = torch.ones(2, 4)
    assert "called 'backend', 'explain'" in mistakes("interpreter", torch.export.export(Clashes(), (x,)))


@pytest.mark.parametrize("name", ["save", "load_state_dict", "_turns", "fallback"])
def test_such_methods_in_a_file_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.tport"
    to_backend("interpreter", Blocks().eval(), spec_of(X)).save(path)
    found = saved_module.open_module(path)
    found.manifest.methods[name] = found.manifest.methods["forward"]  # type: ignore[index]
    content = {n: zipfile.ZipFile(path).read(n) for n in zipfile.ZipFile(path).namelist()}
    content["manifest.json"] = found.manifest.to_json()
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in content.items():
            archive.writestr(member, data)
    assert name in json.loads(content["manifest.json"])["methods"]
    with pytest.raises(DamagedFileError, match=f"'{name}' would hide what a lowered module has itself"):
        torchport.load(path)


def test_weights_of_such_names_in_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    to_backend("interpreter", Blocks().eval(), spec_of(X)).save(path)
    found = saved_module.open_module(path)
    found.manifest.weights["explain.up"] = manifest.Weight("first.up.weight")  # type: ignore[index]
    content = {n: zipfile.ZipFile(path).read(n) for n in zipfile.ZipFile(path).namelist()}
    content["manifest.json"] = found.manifest.to_json()
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in content.items():
            archive.writestr(member, data)
    with pytest.raises(DamagedFileError, match="'explain' would hide what a lowered module has itself"):
        torchport.load(path)


def test_mistakes_of_every_argument_are_listed_at_once() -> None:
    specs = {"forwrad": CompileSpec((X,)), "forward": CompileSpec((), {"y": X}, options={"level": torch.ones(1)})}
    text = mistakes("interpreter", Blocks(), specs, fallback="interpretr", submodules=["third"])
    for part in (
        "fallback='interpretr': the legal values are 'error' and 'interpreter'",
        "'forwrad': Blocks has no such method; it has forward",
        "'forward': the arguments do not fit forward(x): got an unexpected keyword argument 'y'",
        "'forward': options['level'] is a Tensor",
        "'third' is no submodule",
        "The submodules are 'first'",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("submodules", "text"),
    [
        ("first", "submodules is a str, not a list of dotted names; write submodules=['first']"),
        (3, "submodules is a int, not a list of dotted names"),
        ([3], "3 is no submodule"),
        ([], "the list of submodules is empty"),
    ],
)
def test_submodules_that_are_no_list_of_names_are_refused(submodules: Any, text: str) -> None:
    assert text in mistakes("interpreter", Blocks(), spec_of(X), submodules=submodules)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (3, "dynamic_shapes is a int"),
        (({5: None},), "dynamic_shapes[0]: 5 is no dimension of a tensor of size [3, 6]"),
        ({"x": {"a": None}}, "dynamic_shapes['x']: 'a' is no dimension"),
        (((None,),), "dynamic_shapes[0]: 1 sizes are given of a tensor of size [3, 6]"),
    ],
)
def test_dimensions_that_there_are_not_are_named(shapes: Any, text: str) -> None:
    assert text in mistakes("interpreter", Blocks(), {"forward": CompileSpec((X,), dynamic_shapes=shapes)})


@pytest.mark.parametrize("name", [3, None, b"interpreter"])
def test_a_backend_is_named_by_a_text(name: Any) -> None:
    assert "the first argument is the name of a backend" in mistakes(name, Blocks(), spec_of(X))


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pt2").write_text("garbage")
    with zipfile.ZipFile(tmp_path / "zip.pt2", "w") as archive:
        archive.writestr("a", "b")
    assert "there is no file" in mistakes("interpreter", tmp_path / "none.pt2")
    assert "there is no file" in mistakes("interpreter", tmp_path)
    assert "is no file of torch.export.save" in mistakes("interpreter", str(tmp_path / "text.pt2"))
    assert "torch.export cannot read" in mistakes("interpreter", tmp_path / "zip.pt2")


def test_what_is_no_module_is_named() -> None:
    assert "the class Linear cannot be lowered" in mistakes("interpreter", nn.Linear)
    assert "a int cannot be lowered" in mistakes("interpreter", 3, fallback="no")


def test_a_mistyped_keyword_is_named() -> None:
    lowered = to_backend("interpreter", nn.Linear(6, 2), spec_of(X))
    with pytest.raises(InvalidArgumentError, match="unexpected keyword argument 'inptu'; did you mean 'input'"):
        lowered(inptu=X)
    with pytest.raises(InvalidArgumentError, match="missing a required argument: 'input'"):
        lowered()


def test_a_layout_is_named() -> None:
    lowered = to_backend("interpreter", nn.Linear(6, 2), spec_of(X))
    with pytest.raises(InvalidArgumentError, match=r"input 0 is sparse_coo f32\[3, 6\] on cpu"):
        lowered(X.to_sparse())


def test_a_backend_that_raises_is_named_with_its_part() -> None:
    with registered("switched", Switched()) as backend:
        lowered = to_backend("switched", Blocks().eval(), spec_of(X))
        backend.broken = {"execute"}
        with pytest.raises(ExecutionError, match=r"switched forward\.p0: Switched\.execute\(\) raised RuntimeError"):
            lowered(X)


@pytest.mark.parametrize("returned", [None, 3, torch.ones(1)])
def test_a_backend_that_returns_no_list_is_named_with_its_part(returned: Any) -> None:
    class Returns(Switched):
        def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
            return returned  # type: ignore[no-any-return]

    with registered("returns", Returns()):
        lowered = to_backend("returns", Blocks().eval(), spec_of(X))
        with pytest.raises(ExecutionError, match=r"returns forward\.p0: Returns\.execute\(\) returned a \w+, no"):
            lowered(X)
