"""A lowered module is a module: tensors are added, weights replaced, copies made, and a file has all that it can."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import torchport_runtime
from aot.subjects import Blocks, Scaled, again, spec_of
from runtime.files import members_of, write_members
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.errors import CaptureError, DamagedFileError, SavedFileError

X, H = torch.randn(5), torch.randn(5)


def test_tensors_added_after_lowering_survive_saving(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", Scaled(), spec_of(X, H))
    lowered.register_buffer("example", torch.arange(5.0))
    lowered.register_parameter("gain", nn.Parameter(torch.ones(2)))
    lowered.register_buffer("scratch", torch.ones(2), persistent=False)
    lowered.names = {"inputs": ["x", "h"]}
    loaded = again(again(lowered, tmp_path), tmp_path)
    assert ["scale", "gain", "example"] == list(loaded.state_dict())
    assert isinstance(loaded.gain, nn.Parameter)
    assert lowered.names == loaded.names
    torch.testing.assert_close(loaded(loaded.example, H), lowered(lowered.example, H))
    program = torchport_runtime.load(tmp_path / "m.tport")
    assert lowered.names == program.names == program.attributes["names"]


def test_weights_that_are_replaced_are_used_and_saved(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", Scaled(), spec_of(X, H))
    lowered.scale = nn.Parameter(torch.full((5,), 0.5))
    for one in (lowered, again(lowered, tmp_path)):
        torch.testing.assert_close(one(X, H), torch.sin(X * 0.5) + H)
    fresh = {"scale": torch.full((5,), 2.0)}
    lowered.load_state_dict(fresh, assign=True)
    torch.testing.assert_close(lowered(X, H), torch.sin(X * 2) + H)


def test_a_loaded_module_takes_other_weights_and_its_file_keeps_its_own(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", Scaled(), spec_of(X, H))
    loaded = again(lowered, tmp_path)
    before = (tmp_path / "m.tport").read_bytes()
    loaded.load_state_dict({"scale": torch.zeros(5)})
    torch.testing.assert_close(loaded(X, H), H)
    assert before == (tmp_path / "m.tport").read_bytes()
    torch.testing.assert_close(load(tmp_path / "m.tport")(X, H), lowered(X, H))


def test_changes_that_a_file_has_no_form_for_are_all_listed(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", Blocks().eval(), spec_of(torch.randn(3, 6)))
    lowered.extra = nn.Linear(2, 2)
    lowered.first.label = "a"
    lowered.sizes = torch.ones(3)
    lowered.share_memory = True
    lowered.first.up.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    del lowered.second.up.bias
    with pytest.raises(SavedFileError) as raised:
        lowered.save(tmp_path / "m.tport")
    for part in (
        "the submodule 'extra' is a Linear, which was not lowered",
        "the attribute 'first.label' was set on a submodule; set it on the whole",
        "the attribute 'sizes' is a Tensor; finite numbers, texts, lists and dicts are saved, and tensors as buffers",
        "the attribute 'share_memory' hides one that every lowered module has",
        "the weight 'first.up.weight' is f64[2, 2] now; the methods take it as f32[12, 6]",
        "the weight 'second.up.bias' is gone; the methods take it as f32[12]",
    ):
        assert part in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["_functions", "forward", "__class__", "save", "no name"])
def test_an_attribute_of_a_file_hides_nothing(tmp_path: Path, name: str) -> None:
    to_backend("interpreter", Scaled(), spec_of(X, H)).save(tmp_path / "m.tport")
    members = members_of(tmp_path / "m.tport")
    manifest = json.loads(members["manifest.json"]) | {"attributes": {name: 1}}
    write_members(tmp_path / "m.tport", {**members, "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(DamagedFileError, match=f"the attribute '{name}' would hide"):
        load(tmp_path / "m.tport")
    program = torchport_runtime.load(tmp_path / "m.tport")
    assert {name: 1} == program.attributes
    assert program(X.numpy(), H.numpy()).shape == (5,)


class Counts(nn.Module):
    """State with two names; each method uses another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(5))
        self.seen = self.total

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2

    def peek(self, x):
        return self.seen + x


@pytest.mark.parametrize("order", [("forward", "peek"), ("peek", "forward")])
def test_state_that_has_two_names_is_one_in_the_file(tmp_path: Path, order: tuple[str, str]) -> None:
    reference = Counts()
    lowered = to_backend("interpreter", reference, {name: CompileSpec((X,)) for name in order})
    loaded = again(lowered, tmp_path)
    program = torchport_runtime.load(tmp_path / "m.tport")
    for _ in range(2):
        wanted = reference(X)
        torch.testing.assert_close(lowered(X), wanted)
        torch.testing.assert_close(loaded(X), wanted)
        torch.testing.assert_close(torch.from_numpy(program(X.numpy())), wanted)
        torch.testing.assert_close(loaded.peek(X), reference.peek(X))
        torch.testing.assert_close(torch.from_numpy(program.peek(X.numpy())), reference.peek(X))
    assert len(program.state) == 2
    for value in program.state.values():
        torch.testing.assert_close(torch.from_numpy(value), reference.total)
    program.reset()
    assert not any(value.any() for value in program.state.values())


def test_a_copy_has_state_of_its_own(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", Counts(), {"forward": CompileSpec((X,)), "peek": CompileSpec((X,))})
    for one in (lowered, again(lowered, tmp_path)):
        copied = copy.deepcopy(one)
        for _ in range(2):
            one(X)
        torch.testing.assert_close(copied.peek(X), X)
        torch.testing.assert_close(one.peek(X), 3 * X)
        torch.testing.assert_close(copied(X), 2 * X)
        torch.testing.assert_close(one.peek(X), 3 * X)


def test_what_torch_cannot_decompose_is_an_error_of_ours() -> None:
    class Aliases(Counts):
        def forward(self, x):
            self.seen.add_(x)
            return self.total * 2

    with pytest.raises(CaptureError, match="forward cannot be captured"):
        to_backend("interpreter", Aliases(), spec_of(X))
