"""Where a module is saved and loaded: what is no path or no file is an error of ours; links and permissions stay."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchport_runtime
from aot.subjects import spec_of
from torchport.aot.lowered_module import LoweredModule
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.cli import main as torchport_main
from torchport.errors import InvalidArgumentError, SavedFileError
from torchport_runtime.command.app import main as runtime_main

LOADERS: list[Callable[[object], object]] = [load, torchport_runtime.load]  # type: ignore[list-item]


@pytest.fixture(scope="module")
def lowered() -> LoweredModule:
    return to_backend("interpreter", nn.ReLU(), spec_of(torch.ones(2)))


@pytest.mark.parametrize("load_file", LOADERS)
def test_what_is_no_path_or_no_file_is_said(tmp_path: Path, load_file: Callable[[object], object]) -> None:
    for wrong in (3, None, ["m.tport"]):
        with pytest.raises(InvalidArgumentError, match=r"the path of a \.tport file is wanted"):
            load_file(wrong)
    with pytest.raises(SavedFileError, match=r"it is a folder\. Give the file that"):
        load_file(tmp_path)
    with pytest.raises(SavedFileError, match="cannot read"):
        load_file("m\0.tport")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SavedFileError, match="it is no file"):
        load_file(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "nothing.tport")


@pytest.mark.parametrize("main", [torchport_main, runtime_main])
@pytest.mark.parametrize("command", ["inspect", "run"])
def test_a_folder_given_to_a_command(
    tmp_path: Path, main: Callable[[list[str]], int], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err


def test_a_module_is_saved_to_files_only(lowered: LoweredModule, tmp_path: Path) -> None:
    for wrong in (None, 3):
        with pytest.raises(InvalidArgumentError, match=r"the path of a \.tport file is wanted"):
            lowered.save(wrong)  # type: ignore[arg-type]
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for wrong in (tmp_path, tmp_path / "pipe", tmp_path / "m\0", tmp_path / "loop"):
        with pytest.raises(SavedFileError, match="cannot save"):
            lowered.save(wrong)
    assert sorted(os.listdir(tmp_path)) == ["loop", "pipe"]
    lowered.save(os.fsencode(tmp_path / "m.tport"))  # type: ignore[arg-type]
    assert load(tmp_path / "m.tport").methods == ("forward",)


def test_saving_over_a_link_writes_where_it_leads(lowered: LoweredModule, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "one").write_bytes(b"old")
    for name in ("one", "new"):
        link = tmp_path / f"{name}.tport"
        link.symlink_to(Path("store") / name)
        lowered.save(link)
        assert link.is_symlink()
        assert load(tmp_path / "store" / name).methods == ("forward",)
    assert sorted(os.listdir(tmp_path)) == ["new.tport", "one.tport", "store"]
    assert sorted(os.listdir(tmp_path / "store")) == ["new", "one"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_file_keeps_its_permissions_and_a_new_one_has_those_of_any_new_file(
    lowered: LoweredModule, tmp_path: Path
) -> None:
    path, other = tmp_path / "m.tport", tmp_path / "other"
    lowered.save(path)
    other.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
    for mode in (0o600, 0o664, 0o444):
        path.chmod(mode)
        lowered.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode
