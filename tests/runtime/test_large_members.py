"""Members that are too large for a zip's 32 bits: written, aligned and read, without writing so much."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import torchport_runtime
from aot.subjects import Blocks, spec_of
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport_runtime.container import ALIGNMENT, Container, Writer

GIB = 1 << 30
LIMIT = 1 << 10
"""What is large, where the limit is lowered."""


@pytest.mark.parametrize(
    "size", [0, LIMIT // 2, LIMIT // 2 + 1, int(LIMIT / 1.05), int(LIMIT / 1.05) + 1, LIMIT - 1, LIMIT, LIMIT + 1, 5000]
)
def test_members_on_both_sides_of_the_limit_are_aligned_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", LIMIT)
    wanted = {"before": b"b" * 10, "large": bytes(i % 251 for i in range(size)), "after": b"a" * 3}
    with Writer(tmp_path / "m.tport") as writer:
        for name, content in wanted.items():
            writer.add(name, content)
    monkeypatch.undo()  # whoever reads it knows nothing of the lower limit
    container = Container(tmp_path / "m.tport")
    for name, content in wanted.items():
        assert content == bytes(container.read(name))
        assert container._spans[name][0] % ALIGNMENT == 0
    with zipfile.ZipFile(tmp_path / "m.tport") as archive:
        assert archive.testzip() is None
        assert wanted == {name: archive.read(name) for name in archive.namelist()}


def test_a_module_whose_members_are_all_large_is_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    lowered = to_backend("interpreter", module, spec_of(x), fallback="interpreter")
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 64)
    lowered.save(tmp_path / "m.tport")
    monkeypatch.undo()
    with zipfile.ZipFile(tmp_path / "m.tport") as archive:
        assert all(entry.extract_version == zipfile.ZIP64_VERSION for entry in archive.infolist())
    loaded = load(tmp_path / "m.tport")
    torch.testing.assert_close(loaded(x), module(x).detach())
    assert all(p.data_ptr() % ALIGNMENT == 0 for p in loaded.parameters())
    np.testing.assert_allclose(
        torchport_runtime.load(tmp_path / "m.tport")(x.numpy()), module(x).detach().numpy(), rtol=1e-5, atol=1e-6
    )


class Sparse:
    """A file in which one object's bytes become a hole: passed over, and never written."""

    def __init__(self, file: object, hole: memoryview) -> None:
        self._file = file
        self._hole = hole

    def write(self, content: bytes | memoryview) -> int:
        if isinstance(content, memoryview) and content.obj is self._hole.obj:
            self._file.seek(content.nbytes, 1)  # type: ignore[attr-defined]
            return content.nbytes
        return self._file.write(content)  # type: ignore[attr-defined, no-any-return]

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_members_of_more_than_four_gib_are_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.tport"
    hole = memoryview(bytearray(1 << 22))
    count = 4 * GIB // hole.nbytes + 1

    def pieces() -> Iterator[bytes | memoryview]:
        yield b"begins"
        for _ in range(count):
            yield hole
        yield b"ends"

    size = 6 + count * hole.nbytes + 4
    # The sum over four GiB of zeros would take seconds; nothing of ours reads it, BLAKE2b is what is checked.
    monkeypatch.setattr(zipfile, "crc32", lambda content, value=0: 0)
    with Writer(path) as writer:
        writer._archive.fp = Sparse(writer._archive.fp, hole)  # type: ignore[assignment]
        writer.add("before", b"x")
        writer.add("large", pieces(), size)
        writer.add("after", b"beyond four GiB")
    monkeypatch.undo()
    assert path.stat().st_size > 4 * GIB
    assert path.stat().st_blocks * 512 < GIB
    for writable in (False, True):
        container = Container(path, writable)
        assert ["before", "large", "after"] == container.names
        large = container.read("large")
        assert size == large.nbytes == container.size_of("large")
        assert b"begins" + bytes(10) == large[:16]
        assert bytes(10) + b"ends" == large[-14:]
        assert b"beyond four GiB" == container.read("after")
        assert all(start % ALIGNMENT == 0 for start, _ in container._spans.values())
    path.unlink()
