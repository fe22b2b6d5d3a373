"""The zip around a saved module: read with every size checked, written whole or not at all.

Members are stored, not compressed, each beginning at a multiple of 64 bytes of the file, so weights are used where the
file is mapped. Nothing is extracted, so no name in a file can lead out of a folder; names that would are refused all
the same.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from torchport_runtime.errors import DamagedFileError, SavedFileError
from torchport_runtime.paths import open_file, path_of

Bytes = bytes | bytearray | memoryview

ALIGNMENT = 64
_MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
"""Signature, version, flags, method, time, date, crc, two sizes, two lengths (PKWARE APPNOTE 4.3.7)."""
_PADDING_ID = 0xD935
"""The extra field of padding, as zipalign writes it."""
_MOST_MEMBERS = 100_000
_CHUNK_BYTES = 1 << 22


def checksum(*pieces: Bytes) -> str:
    """The checksum of a member: BLAKE2b, 32 bytes, in hexadecimal."""
    digest = blake2b(digest_size=32)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class Container:
    """The members of a saved file, mapped into memory: reading one copies nothing.

    Args:
        path: the file.
        writable: whether what is read may be written to. The file stays as it is: a page that is written to is copied.

    Raises:
        InvalidArgumentError: that is no path.
        FileNotFoundError: there is no such file.
        SavedFileError: it cannot be read.
        DamagedFileError: it is no file of ours, or its directory does not fit its content.
    """

    def __init__(self, path: str | os.PathLike[str], writable: bool = False) -> None:
        self.path = path_of(path)
        with open_file(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < len(_MAGIC) or file.read(len(_MAGIC)) != _MAGIC:
                raise DamagedFileError(
                    f"{self.path} is no saved module: it does not begin as a .tport file does. Give the file that "
                    "LoweredModule.save() wrote."
                )
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY if writable else mmap.ACCESS_READ)
            self._crcs: dict[str, int] = {}
            try:
                self._spans = self._read_directory(file, size)
            except BaseException:
                self._map.close()
                raise

    def _read_directory(self, file: object, size: int) -> dict[str, tuple[int, int]]:
        try:
            with zipfile.ZipFile(file) as archive:  # type: ignore[call-overload]
                entries = archive.infolist()
        except (
            zipfile.BadZipFile,
            ValueError,
            OSError,
            EOFError,
            struct.error,
            UnicodeError,
            NotImplementedError,
        ) as error:
            raise DamagedFileError(
                f"{self.path} cannot be read ({error}): it was cut short or changed. Copy it again."
            ) from error
        if len(entries) > _MOST_MEMBERS:
            raise DamagedFileError(f"{self.path} has {len(entries)} members; the most is {_MOST_MEMBERS}")
        spans: dict[str, tuple[int, int]] = {}
        for entry in entries:
            name = check_name(entry.orig_filename, self.path)
            if name in spans:
                raise DamagedFileError(f"{self.path} has two members {name!r}")
            spans[name] = self._span(entry, size)
            self._crcs[name] = entry.CRC
        taken = sorted(spans.values())
        for (start, length), (after, _) in pairwise(taken):
            if start + length > after:
                raise DamagedFileError(f"{self.path}: two members lie over each other. Copy it again.")
        return spans

    def _span(self, entry: zipfile.ZipInfo, size: int) -> tuple[int, int]:
        """Where a member's bytes are, by its own header, which must agree with the directory."""
        name = entry.filename
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise DamagedFileError(f"{self.path}: the member {name!r} is compressed; a .tport file has none that is")
        if entry.flag_bits & 0x1:
            raise DamagedFileError(f"{self.path}: the member {name!r} is encrypted")
        at = entry.header_offset
        if not 0 <= at <= size - _LOCAL_HEADER.size:
            raise DamagedFileError(f"{self.path}: the member {name!r} lies outside the file. Copy it again.")
        fields = _LOCAL_HEADER.unpack_from(self._map, at)
        start = at + _LOCAL_HEADER.size + fields[-2] + fields[-1]
        own_name = self._map[at + _LOCAL_HEADER.size : at + _LOCAL_HEADER.size + fields[-2]]
        if fields[0] != _MAGIC or fields[3] != zipfile.ZIP_STORED or own_name != entry.orig_filename.encode():
            raise DamagedFileError(f"{self.path}: the header of {name!r} and the directory differ. Copy it again.")
        if start + entry.file_size > size:
            raise DamagedFileError(f"{self.path}: the member {name!r} lies outside the file. Copy it again.")
        return start, entry.file_size

    @property
    def names(self) -> list[str]:
        """The names of the members."""
        return list(self._spans)

    def size_of(self, name: str) -> int:
        """The bytes of a member."""
        return self._spans[name][1]

    def read(self, name: str) -> memoryview:
        """The bytes of a member, where they are mapped.

        Raises:
            DamagedFileError: there is no such member.
        """
        span = self._spans.get(name)
        if span is None:
            raise DamagedFileError(f"{self.path} lacks {name!r}, which its manifest names")
        return memoryview(self._map)[span[0] : span[0] + span[1]]

    def read_checked(self, name: str) -> bytes:
        """A copy of the bytes of a member, compared with the archive's own checksum, a CRC-32.

        It is what guards the manifest, which has the checksums of all others.

        Raises:
            DamagedFileError: there is no such member, or it is not what was saved.
        """
        content = bytes(self.read(name))
        if zlib.crc32(content) != self._crcs[name]:
            raise DamagedFileError(f"{self.path}: {name!r} is not what was saved. Copy the file again.")
        return content


def check_name(name: str, path: Path) -> str:
    """A member's name, if it is plain and stays inside.

    Raises:
        DamagedFileError: it is not.
    """
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or ":" in name or any(p in ("", ".", "..") for p in parts):
        raise DamagedFileError(f"{path}: {name!r} is no name that a member may have")
    return name


class Writer:
    """Writes a file beside the one that it replaces; the old one stays until the new one is whole.

    Until then the new one is ``.NAME.XXXXXXXX.part`` in the same folder, for a file NAME and eight random letters or
    digits. An exception removes it. A process that is killed leaves it, and it may be deleted. The new file has the
    permissions of the one that it replaces. Where the path is a symbolic link, the file that it leads to is replaced.

    Example::

        with Writer("model.tport") as writer:
            writer.add("manifest.json", b"{}")

    Raises:
        InvalidArgumentError: that is no path.
        SavedFileError: the file cannot be written, at any point until it is whole.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path_of(path)
        try:
            self._target = self.path.resolve()
            self._temporary = self._target.parent / f".{self._target.name}.{secrets.token_hex(4)}.part"
            replaced = self._target.stat() if self._target.exists() else None
            if replaced is not None and not stat.S_ISREG(replaced.st_mode):
                raise OSError(errno.EINVAL, "it is a folder" if self._target.is_dir() else "it is no file")
            # "x": a file that is there is never written over, and the new one has the permissions of any new file.
            self._file = self._temporary.open("x+b")
        except (OSError, ValueError, RuntimeError) as error:  # a NUL in a path; links that lead to each other
            raise self._failed(error) from error
        try:
            if replaced is not None:
                self._temporary.chmod(stat.S_IMODE(replaced.st_mode))
        except OSError as error:
            self._file.close()
            self._temporary.unlink(missing_ok=True)
            raise self._failed(error) from error
        self._archive = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED, allowZip64=True)

    def add(self, name: str, content: Bytes | Iterable[Bytes], size: int | None = None) -> None:
        """Adds a member.

        Args:
            name: the member's name.
            content: its bytes, at once or in pieces.
            size: how many; needed for pieces.
        """
        pieces: Iterable[Bytes] = (content,) if isinstance(content, Bytes) else content
        if isinstance(content, Bytes):
            size = memoryview(content).nbytes
        if size is None:
            raise TypeError(f"the size of {name!r}, which is given in pieces, is needed before they are written")
        entry = zipfile.ZipInfo(check_name(name, self.path))  # dated 1980, so that equal modules are equal files
        entry.file_size = size
        entry.external_attr = 0o644 << 16
        # zipfile decides by a larger size than this one, so whatever it would make large is large here already.
        large = size > zipfile.ZIP64_LIMIT // 2
        # zipfile writes the sizes of a large member into an extra field of 20 bytes of its own.
        header = _LOCAL_HEADER.size + len(name.encode()) + 4 + (20 if large else 0)
        padding = -(self._file.tell() + header) % ALIGNMENT
        entry.extra = struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)
        with self._archive.open(entry, "w", force_zip64=large) as member:
            for piece in pieces:
                view = memoryview(piece).cast("B")
                for start in range(0, view.nbytes, _CHUNK_BYTES):
                    member.write(view[start : start + _CHUNK_BYTES])

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._discard()
            if isinstance(error, OSError):
                raise self._failed(error) from error
            return
        try:
            self._archive.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._target)
        except OSError as failure:
            self._discard()
            raise self._failed(failure) from failure
        except BaseException:
            self._discard()
            raise
        try:
            _sync_folder(self._target.parent)
        except OSError as failure:
            raise self._failed(failure) from failure

    def _failed(self, error: Exception) -> SavedFileError:
        return SavedFileError(f"cannot save {self.path}: {getattr(error, 'strerror', None) or error}")

    def _discard(self) -> None:
        self._archive._didModify = False  # type: ignore[attr-defined]  # or closing writes a directory to a full disk
        for close in (self._archive.close, self._file.close):
            _without_os_error(close)
        self._temporary.unlink(missing_ok=True)


def _without_os_error(action: Callable[[], None]) -> None:
    """Does it; a second failure while the first is raised says nothing new."""
    try:
        action()
    except OSError:
        return


def _sync_folder(folder: Path) -> None:
    """Makes a rename last, where folders can be opened (not on Windows) and synced.

    Source: PostgreSQL's fsync_fname_ext() (src/common/file_utils.c) passes over the same errors for folders.
    """
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL):
            raise
    finally:
        os.close(descriptor)
