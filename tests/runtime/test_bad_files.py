"""What is wrong with a file is said when it is loaded, in one error of ours, and nothing of it is used (case 31)."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchport_runtime
from aot.subjects import Blocks, spec_of
from runtime.files import members_of, write_members
from runtime.fuzz import READERS, check_mutants
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport_runtime.container import Writer
from torchport_runtime.errors import (
    DamagedFileError,
    FormatVersionError,
    SavedFileError,
    TargetMismatchError,
)
from torchport_runtime.saved_module import open_module

LOADERS: list[Callable[[Path], object]] = [load, torchport_runtime.load]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("valid") / "m.tport"
    to_backend("interpreter", Blocks().eval(), spec_of(torch.randn(3, 6)), fallback="interpreter").save(path)
    return members_of(path)


def with_manifest(members: dict[str, bytes], change: Callable[[dict], None]) -> dict[str, bytes]:
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    return {**members, "manifest.json": json.dumps(manifest).encode()}


@pytest.mark.parametrize("load_file", LOADERS)
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda m: m.update(format_version=2), FormatVersionError, "Update torchport-runtime"),
        (lambda m: m.update(target="sparc-solaris"), TargetMismatchError, "Lower the module for this target"),
        (lambda m: m.update(colour="red"), DamagedFileError, "the whole has unknown colour"),
        (lambda m: m.pop("weights"), DamagedFileError, "the whole lacks weights"),
        (lambda m: m.update(fallback="maybe"), DamagedFileError, "fallback: expected 'error' or 'interpreter'"),
        (lambda m: m["methods"].clear(), DamagedFileError, "."),
        (lambda m: m["methods"]["forward"].update(training=1), DamagedFileError, "training: expected true or false"),
        (lambda m: m["methods"]["forward"]["arguments"].pop(), DamagedFileError, "another number of tensors"),
        (lambda m: m["methods"]["forward"]["arguments"][0].update(weight="no"), DamagedFileError, "'no'"),
        (lambda m: m["weights"].pop("first.up.weight"), DamagedFileError, "first.up.weight"),
        (lambda m: m["methods"]["forward"]["results"][0].update(user=7), DamagedFileError, "."),
    ],
)
def test_a_manifest_that_is_wrong(
    members: dict[str, bytes], tmp_path: Path, load_file, change, kind: type[Exception], message: str
) -> None:
    write_members(tmp_path / "m.tport", with_manifest(members, change))
    with pytest.raises(kind, match=message):
        load_file(tmp_path / "m.tport")


@pytest.mark.parametrize("load_file", LOADERS)
def test_every_flipped_byte_of_a_member_is_noticed(members: dict[str, bytes], tmp_path: Path, load_file) -> None:
    for name, content in members.items():
        if name != "manifest.json":
            at = len(content) // 2
            spoilt = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            write_members(tmp_path / "m.tport", {**members, name: spoilt})
            with pytest.raises(DamagedFileError, match="is not what was saved"):
                load_file(tmp_path / "m.tport")


@pytest.mark.parametrize("load_file", LOADERS)
def test_a_file_that_was_cut_short_or_is_another(members: dict[str, bytes], tmp_path: Path, load_file) -> None:
    path = tmp_path / "m.tport"
    write_members(path, members)
    whole = path.read_bytes()
    for length in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError):
            load_file(path)
    path.write_bytes(b"no zip at all")
    with pytest.raises(DamagedFileError, match="no saved module"):
        load_file(path)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "C:evil", "a\\b", "a//b"])
def test_a_name_that_leads_out_is_refused(members: dict[str, bytes], tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "m.tport", "w") as archive:
        for member, content in {**members, name: b"x"}.items():
            archive.writestr(zipfile.ZipInfo(member), content)
    with pytest.raises(DamagedFileError, match="is no name that a member may have"):
        load(tmp_path / "m.tport")


def test_compressed_double_and_spare_members_are_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    with pytest.raises(DamagedFileError, match="is compressed"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("manifest.json", b"{}")
    with pytest.raises(DamagedFileError, match=r"two members 'manifest\.json'"):
        load(path)
    write_members(path, {**members, "spare": b""})
    with pytest.raises(DamagedFileError, match="has spare that its manifest lacks"):
        load(path)
    write_members(path, {n: c for n, c in members.items() if not n.startswith("payloads/")})
    with pytest.raises(DamagedFileError, match="lacks payloads/"):
        load(path)


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    path.write_bytes(b"the old one")

    def interrupted() -> None:
        with Writer(path) as writer:
            writer.add("a", bytes(1000))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"the old one"
    assert os.listdir(tmp_path) == ["m.tport"]
    with pytest.raises(SavedFileError, match="cannot save"):
        Writer(tmp_path / "nowhere" / "m.tport")


def test_mutants_load_or_raise_errors_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    outcomes = check_mutants(folder, 250, seed=7)
    for reader in READERS:
        assert outcomes[f"{reader}: DamagedFileError"] > 100
        assert outcomes[f"{reader}: loads and gives the same"] > 0


def test_no_byte_of_the_manifest_changes_unseen(tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    to_backend("interpreter", nn.Linear(2, 2).eval(), spec_of(torch.ones(2, 2))).save(path)
    whole = path.read_bytes()
    begin = whole.index(b'{\n "format"')
    end = whole.index(b"graphs/forward.txt", whole.rindex(b'"members"')) + 200
    for at in range(begin, end, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DamagedFileError, match=r"'manifest\.json' is not what was saved"):
            open_module(path)
