"""The compile cache on disk: what a backend made of a graph, for the next process that runs the same script.

One file per program, named by a hash of everything it depends on. A file is written under a temporary name and renamed,
so readers see all of it or nothing; it begins with a checksum, so what was damaged is not used. The cache is never the
reason why a program fails: a folder that cannot be written, a full disk, a damaged file cost a compile and are counted.
"""

from __future__ import annotations

import os
import tempfile
from hashlib import blake2b
from pathlib import Path

from torchport import metrics
from torchport.config import settings

_FAILED = metrics.counter("DiskCacheError")
_MAGIC = b"torchport-cache-1\n"
_DIGEST_BYTES = 16
_PRUNE_EVERY = 64
"""Files written by this process between two looks at how much the folder holds."""

_written = 0


def cache_folder() -> Path | None:
    """Where the programs are; ``None`` when the cache is off."""
    chosen = settings.cache_dir
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(home) if home else Path.home() / ".cache") / "torchport"


def key_of(*parts: str) -> str:
    """The name of the entry that depends on exactly these texts."""
    return blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def load(key: str) -> bytes | None:
    """What was stored under a key; ``None`` when there is nothing, or it is damaged."""
    folder = cache_folder()
    if folder is None:
        return None
    file = folder / key[:2] / key
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        _FAILED.value += 1
        return None
    start = len(_MAGIC) + _DIGEST_BYTES
    payload = content[start:]
    if content[:start] != _MAGIC + _digest(payload):
        _FAILED.value += 1
        discard(key)
        return None
    return payload


def store(key: str, payload: bytes) -> None:
    """Stores bytes under a key, in place of what was there."""
    global _written
    folder = cache_folder()
    if folder is None:
        return
    try:
        place = folder / key[:2]
        place.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + _digest(payload) + payload)
            os.replace(name, place / key)
        except BaseException:
            os.unlink(name)
            raise
        _written += 1
        if _written % _PRUNE_EVERY == 0:
            _prune(folder, settings.cache_dir_mb << 20)
    except OSError:
        _FAILED.value += 1


def discard(key: str) -> None:
    """Removes the entry of a key, if there is one."""
    folder = cache_folder()
    if folder is not None:
        try:
            (folder / key[:2] / key).unlink(missing_ok=True)
        except OSError:
            _FAILED.value += 1


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=_DIGEST_BYTES).digest()


def _prune(folder: Path, limit: int) -> None:
    """Removes the oldest files until the rest takes no more than ``limit`` bytes."""
    found = []
    for file in folder.glob("??/*"):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue  # another process removed it
        found.append((status.st_mtime, status.st_size, file))
    total = sum(size for _, size, _ in found)
    for _, size, file in sorted(found):
        if total <= limit:
            break
        file.unlink(missing_ok=True)
        total -= size
