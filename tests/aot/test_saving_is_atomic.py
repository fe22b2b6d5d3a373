"""A save that is killed, or that fails, at any byte leaves the old file.

The system ends the child process at the byte: past RLIMIT_FSIZE a write raises SIGXFSZ, whose default is to kill, and
is an OSError where that signal is ignored. So nothing of the writer is replaced here.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from aot.subjects import Blocks, spec_of
from torchport.aot.lowered_module import LoweredModule
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.errors import SavedFileError

X = torch.randn(3, 6)
STEP = 31
"""Bytes from one limit to the next. With 1, which is every byte of the file, it passed too, in three minutes."""
TEMPORARY = re.compile(r"\.m\.tport\.[0-9a-f]{8}\.part")

# The child has no torch, so that a fork for each limit is cheap; what writes is the same.
CHILD = """
    import os, resource, signal, sys
    from pathlib import Path
    from torchport_runtime.errors import SavedFileError
    from torchport_runtime.saved_module import open_module, write_module

    how, new, old, step = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    content, size = old.read_bytes(), new.stat().st_size
    saved = open_module(new)

    def save_and_exit(limit):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if how == "kill" else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            write_module(old, saved.manifest, saved.graphs, saved.weights, saved.payloads)
        except SavedFileError as error:
            assert "cannot save" in str(error) and "File too large" in str(error), error
            os._exit(3)
        except BaseException as error:
            print(type(error), error, flush=True)
            os._exit(4)
        os._exit(0)

    left = set()
    for limit in sorted({*range(0, size, step), size - 1}):
        child = os.fork()
        if child == 0:
            save_and_exit(limit)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == (-signal.SIGXFSZ if how == "kill" else 3), (limit, status)
        assert old.read_bytes() == content, limit
        for path in old.parent.iterdir():
            if path not in (old, new):
                assert how == "kill" and path.stat().st_size <= limit, (limit, path)
                left.add(path.name)
                if limit % 2:  # some stay, and disturb nothing
                    path.unlink()
    child = os.fork()
    if child == 0:
        save_and_exit(size)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert old.read_bytes() == new.read_bytes()
    old.write_bytes(content)
    print(len(left), *sorted(left))
"""


def lowered() -> LoweredModule:
    return to_backend("interpreter", Blocks().eval(), spec_of(X), fallback="interpreter")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    lowered().save(folder / "m.tport")
    lowered().save(folder / "new.tport")
    assert (folder / "m.tport").read_bytes() != (folder / "new.tport").read_bytes()
    return folder / "m.tport", folder / "new.tport"


@pytest.mark.subprocess
@pytest.mark.skipif(os.name != "posix", reason="limits and forks are POSIX's")
@pytest.mark.parametrize("how", ["kill", "fail"])
def test_a_save_that_ends_at_any_byte_leaves_the_old_file(files: tuple[Path, Path], how: str, tmp_path: Path) -> None:
    old, new = tmp_path / "m.tport", tmp_path / "new.tport"
    old.write_bytes(files[0].read_bytes())
    new.write_bytes(files[1].read_bytes())
    wanted = load(old)(X)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), how, str(new), str(old), str(STEP)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count, *left = done.stdout.split()
    assert (int(count) > 300) is (how == "kill")
    assert all(TEMPORARY.fullmatch(name) for name in left)
    torch.testing.assert_close(load(old)(X), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), SavedFileError),
        (OSError(errno.EIO, "Input/output error"), SavedFileError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_save_that_fails_after_the_last_byte_leaves_the_old_file_and_nothing_else(
    files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    failure: BaseException,
    raised: type[BaseException],
) -> None:
    path = tmp_path / "m.tport"
    path.write_bytes(files[0].read_bytes())
    loaded = load(files[1])

    def fails(*args: object) -> None:
        raise failure

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(raised, match=str(failure.args[1]) if failure.args else None) as caught:
        loaded.save(path)
    monkeypatch.undo()
    if raised is SavedFileError:
        assert caught.value.__cause__ is failure
    assert files[0].read_bytes() == path.read_bytes()
    assert ["m.tport"] == os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("error", "is_saved"), [(errno.EINVAL, True), (errno.EBADF, True), (errno.EACCES, True), (errno.EIO, False)]
)
def test_a_folder_that_cannot_be_synced_is_no_failure_and_one_that_fails_is(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_saved: bool
) -> None:
    path = tmp_path / "m.tport"
    loaded = load(files[1])
    real_open, real_fsync = os.open, os.fsync

    def opens(name: object, flags: int, *rest: int) -> int:
        if name == tmp_path and error == errno.EACCES:
            raise PermissionError(error, os.strerror(error))
        return real_open(name, flags, *rest)  # type: ignore[call-overload, no-any-return]

    def syncs(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(error, os.strerror(error))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "open", opens)
    monkeypatch.setattr(os, "fsync", syncs)
    if is_saved:
        loaded.save(path)
    else:
        with pytest.raises(SavedFileError, match="Input/output error"):
            loaded.save(path)
    monkeypatch.undo()
    assert files[1].read_bytes() == path.read_bytes()
    assert ["m.tport"] == os.listdir(tmp_path)


def test_a_module_is_saved_over_the_file_that_it_lies_in(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    path.write_bytes(files[0].read_bytes())
    loaded, other = load(path), load(path)
    wanted = loaded(X)
    loaded.load_state_dict(load(files[1]).state_dict())
    changed = loaded(X)
    loaded.save(path)
    torch.testing.assert_close(other(X), wanted, rtol=0, atol=0)
    torch.testing.assert_close(load(path)(X), changed, rtol=0, atol=0)
    assert not torch.equal(changed, wanted)


def test_a_new_file_has_the_permissions_that_new_files_have(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    load(files[0]).save(tmp_path / "m.tport")
    assert (tmp_path / "plain").stat().st_mode == (tmp_path / "m.tport").stat().st_mode
