"""Files: what is saved is loaded, equal, in another process too; weights are there once; nothing wrong gets in."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
import zipfile
from pathlib import Path

import pytest
import safetensors.numpy
import torch
from torch import nn

from aot.subjects import Blocks, Cache, Nested, Switched, Tied, registered, spec_of
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.lowered_module import LoweredModule
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.cli import main
from torchport.errors import BackendNotAvailableError, SavedFileError, UnknownBackendError


def saved(lowered: LoweredModule, folder: Path, fallback: str | None = None) -> LoweredModule:
    lowered.save(folder / "m.tport")
    return load(folder / "m.tport", fallback)


def test_nested_arguments_dynamic_sizes_and_signatures_come_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Nested().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    lowered = to_backend(
        "interpreter",
        module,
        {
            "forward": CompileSpec((torch.randn(3, 4),), {"scale": 3.0}, {"x": {0: batch}, "scale": None}),
            "only": CompileSpec((torch.ones(2),)),
        },
    )
    again = saved(lowered, tmp_path)
    for n in (2, 5):
        x = torch.randn(n, 4)
        wanted, got = lowered(x, scale=3.0), again(x, scale=3.0)
        torch.testing.assert_close(got[0]["y"], wanted[0]["y"])
        assert got[0]["rest"][::3] == (None, "a")
        torch.testing.assert_close(got[1], wanted[1])
        assert got[2]._fields == wanted[2]._fields
        assert got[2].second == 2 * n
    assert str(again.forward.signature) == str(lowered.forward.signature)
    torch.testing.assert_close(again.only(torch.ones(2)), (torch.full((2,), 2.0),))


def test_a_cache_goes_on_where_it_was(tmp_path: Path) -> None:
    module = Cache().eval()
    lowered = to_backend("interpreter", module, spec_of(torch.randn(4)))
    reference = copy.deepcopy(module)
    x = torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(lowered(x), reference(x))
        again = saved(lowered, tmp_path)
        for _ in range(3):
            torch.testing.assert_close(again(x), reference(x))
    assert int(lowered.position) == 1


def test_two_methods_share_their_weights_in_the_file(tmp_path: Path) -> None:
    class Large(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(500, 64)
            self.head = nn.Linear(64, 500, bias=False)
            self.head.weight = self.embed.weight

    module = Large().eval()
    tokens = torch.randint(0, 500, (5,))
    to_backend("interpreter", module, {"forward": CompileSpec((tokens,))}).save(tmp_path / "one.tport")
    both = to_backend("interpreter", module, {"forward": CompileSpec((tokens,)), "encode": CompileSpec((tokens,))})
    again = saved(both, tmp_path)
    assert (tmp_path / "m.tport").stat().st_size < 1.2 * (tmp_path / "one.tport").stat().st_size
    assert len(list(again.parameters())) == 1
    torch.testing.assert_close(again.encode(tokens), module.encode(tokens).detach())


def test_weights_are_mapped_and_of_a_format_that_others_read(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", Blocks().eval(), spec_of(torch.randn(3, 6)))
    again = saved(lowered, tmp_path)
    weight = again.first.up.weight
    maps = Path("/proc/self/maps")
    if maps.exists():  # Linux tells what is mapped where
        inside = [
            line
            for line in maps.read_text().splitlines()
            if int(line.split("-")[0], 16) <= weight.data_ptr() < int(line.split("-")[1].split()[0], 16)
        ]
        assert "m.tport" in inside[0]
    assert weight.data_ptr() % 64 == 0
    with zipfile.ZipFile(tmp_path / "m.tport") as archive:
        found = safetensors.numpy.load(archive.read("weights.safetensors"))
    torch.testing.assert_close(torch.from_numpy(found["first.up.weight"]), weight.data)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.bool]
)
def test_weights_of_every_dtype_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", (torch.randn(3, 5) * 3).to(dtype))
            self.register_buffer("b", torch.zeros(0, dtype=dtype))
            self.register_buffer("c", torch.ones((), dtype=dtype))

        def forward(self, x):
            return self.a.clone(), self.b.clone(), self.c.clone(), x

    module = Holds()
    again = saved(to_backend("interpreter", module, spec_of(torch.ones(2))), tmp_path)
    for wanted, got in zip(module(torch.ones(2)), again(torch.ones(2)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_selective_and_nested_lowering_come_back(tmp_path: Path) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    with registered("switched", Switched()), registered("other", Switched()):
        inner = to_backend("other", module.second, spec_of(x))
        outer = Blocks().eval()
        outer.first, outer.second = module.first, inner
        again = saved(to_backend("switched", outer, spec_of(x), submodules=["first"]), tmp_path)
        for _ in range(3):
            torch.testing.assert_close(again(x), module(x).detach())
        assert "on other" in again.explain()


def test_attributes_set_after_lowering_come_back_and_others_are_refused(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", Blocks().eval(), spec_of(torch.randn(3, 6)))
    lowered.labels = ["a", "b"]
    lowered.threshold = 0.5
    again = saved(lowered, tmp_path)
    assert ["a", "b"] == again.labels
    assert 0.5 == again.threshold
    again.sizes = torch.ones(3)
    again.opener = open
    before = (tmp_path / "m.tport").read_bytes()
    with pytest.raises(SavedFileError, match=r"(?s)'opener' is a builtin_function.*numbers, texts, lists and dicts"):
        again.save(tmp_path / "m.tport")
    assert before == (tmp_path / "m.tport").read_bytes()


def test_what_was_refused_and_why_is_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backend = Switched()
    backend.refuses = lambda node: node.call.name == "aten.sin.default"
    with registered("switched", backend):
        lowered = to_backend("switched", Blocks().eval(), spec_of(torch.randn(3, 6)))
        again = saved(lowered, tmp_path)
    assert re.search(r"aten\.sin\.default at .*subjects\.py:\d+: it was told so", lowered.explain())
    assert again.explain() == lowered.explain()
    assert main(["inspect", str(tmp_path / "m.tport")]) == 0
    assert ": it was told so" in capsys.readouterr().out


def test_a_lowered_module_is_copied_and_not_pickled() -> None:
    lowered = to_backend("interpreter", Cache().eval(), spec_of(torch.randn(4)))
    for dump in (pickle.dumps, lambda module: torch.save(module, io.BytesIO())):
        for module in (lowered, nn.Sequential(lowered)):
            with pytest.raises(SavedFileError, match=r"cannot be pickled.*\.save\(path\).*torchport\.load\(path\)"):
                dump(module)
    torch.save(lowered.state_dict(), io.BytesIO())
    x = torch.randn(4)
    deep, shallow = copy.deepcopy(nn.Sequential(lowered))[0], copy.copy(lowered)
    torch.testing.assert_close(deep(x), lowered(x))
    assert shallow.keys is lowered.keys
    assert deep.keys is not lowered.keys


def test_saving_twice_gives_the_same_file(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", Blocks().eval(), spec_of(torch.randn(3, 6)))
    lowered.save(tmp_path / "a.tport")
    load(tmp_path / "a.tport").save(tmp_path / "b.tport")
    assert (tmp_path / "a.tport").read_bytes() == (tmp_path / "b.tport").read_bytes()
    assert load(tmp_path / "b.tport").methods == lowered.methods


def test_another_process_loads_it(tmp_path: Path) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    to_backend("interpreter", module, spec_of(x)).save(tmp_path / "m.tport")
    torch.save((x, module(x).detach()), tmp_path / "io.pt")
    script = f"""
        import torch, torchport
        x, wanted = torch.load({str(tmp_path / "io.pt")!r})
        lowered = torchport.load({str(tmp_path / "m.tport")!r})
        torch.testing.assert_close(lowered(x), wanted)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_loading_where_the_backend_is_missing(tmp_path: Path) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    backend = Switched()
    with registered("switched", backend):
        to_backend("switched", module, spec_of(x)).save(tmp_path / "error.tport")
        to_backend("switched", module, spec_of(x), fallback="interpreter").save(tmp_path / "falls.tport")
        for can_compile, can_execute in ((False, False), (False, True), (True, False)):
            backend.can_compile, backend.can_execute = can_compile, can_execute
            with pytest.raises(BackendNotAvailableError, match="it cannot"):
                load(tmp_path / "error.tport")
            with pytest.raises(BackendNotAvailableError, match="its graph was not saved"):
                load(tmp_path / "error.tport", fallback="interpreter")
            with pytest.warns(UserWarning, match="runs in the interpreter: it cannot"):
                lowered = load(tmp_path / "falls.tport")
            torch.testing.assert_close(lowered(x), module(x).detach())
            with pytest.raises(BackendNotAvailableError, match="it cannot"):
                load(tmp_path / "falls.tport", fallback="error")
        backend.can_compile = backend.can_execute = True
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(load(tmp_path / "error.tport")(x), module(x).detach())
    with pytest.raises(UnknownBackendError, match="there is no backend 'switched'"):
        load(tmp_path / "error.tport")
    with pytest.warns(UserWarning, match="there is no backend 'switched'"):
        torch.testing.assert_close(load(tmp_path / "falls.tport")(x), module(x).detach())


def test_a_module_lowered_for_a_missing_backend_can_be_saved_and_run_where_it_is(tmp_path: Path) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    backend = Switched()
    backend.can_execute = False
    with registered("switched", backend):
        with pytest.warns(UserWarning, match="Backend not available here"):
            to_backend("switched", module, spec_of(x)).save(tmp_path / "m.tport")
        backend.can_execute = True
        torch.testing.assert_close(load(tmp_path / "m.tport")(x), module(x).detach())


def test_a_folder_that_is_not_there_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    lowered = to_backend("interpreter", Blocks().eval(), spec_of(torch.randn(3, 6)))
    with pytest.raises(SavedFileError, match="cannot save"):
        lowered.save(tmp_path / "nowhere" / "m.tport")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.tport")
