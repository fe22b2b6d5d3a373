"""The compile cache on disk: entries are whole or absent, and nothing that is wrong with it stops a program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchport import metrics
from torchport.config import settings
from torchport.runtime import disk_cache

KEY = disk_cache.key_of("a", "b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    settings.cache_dir = str(tmp_path / "cache")
    return tmp_path / "cache"


def errors() -> int:
    return metrics.counter_value("DiskCacheError")


def entry(folder: Path) -> Path:
    return folder / KEY[:2] / KEY


def test_what_is_stored_is_loaded(folder: Path) -> None:
    assert disk_cache.load(KEY) is None
    disk_cache.store(KEY, b"program")
    assert disk_cache.load(KEY) == b"program"
    disk_cache.store(KEY, b"")
    assert disk_cache.load(KEY) == b""
    assert [f.name for f in folder.glob("*/*")] == [KEY]


def test_keys_tell_their_parts_apart() -> None:
    assert len({disk_cache.key_of("ab", "c"), disk_cache.key_of("a", "bc"), disk_cache.key_of("abc")}) == 3


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"x" + b[1:], lambda b: b[:30] + b"X" + b[31:], lambda b: b""]
)
def test_a_damaged_entry_is_dropped_and_counted(folder: Path, damage) -> None:
    disk_cache.store(KEY, b"a program of some length")
    entry(folder).write_bytes(damage(entry(folder).read_bytes()))
    before = errors()
    assert disk_cache.load(KEY) is None
    assert errors() == before + 1
    assert not entry(folder).exists()


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_entry(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    settings.cache_dir = str(tmp_path / "file")
    before = errors()
    disk_cache.store(KEY, b"program")
    assert disk_cache.load(KEY) is None
    assert errors() > before


def test_the_oldest_entries_are_removed_first(folder: Path) -> None:
    keys = [disk_cache.key_of(str(i)) for i in range(4)]
    for age, key in enumerate(keys):
        disk_cache.store(key, bytes(1000))
        os.utime(folder / key[:2] / key, (1000 + age, 1000 + age))
    disk_cache._prune(folder, 2500)
    assert [disk_cache.load(k) is not None for k in keys] == [False, False, True, True]


def test_it_can_be_turned_off() -> None:
    settings.cache_dir = "off"
    assert disk_cache.cache_folder() is None
    disk_cache.store(KEY, b"program")
    assert disk_cache.load(KEY) is None


def test_without_a_setting_it_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.cache_dir = ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk_cache.cache_folder() == tmp_path / "torchport"
