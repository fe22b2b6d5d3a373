"""What memory there is, and what data holds of it."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from weakref import ref

import torch

_FIRST_BOUND = 1 << 12


class HeldTensors:
    """Weak references to the tensors that became data in this process.

    A note costs a tenth of a microsecond. To count the bytes at each execution would cost more, and to look for the
    data among all of Python's objects takes a tenth of a second in a large program, at each question.
    """

    def __init__(self) -> None:
        self._references: list[ref[torch.Tensor]] = []
        self._bound = _FIRST_BOUND
        self._lock = threading.Lock()

    def note(self, tensor: torch.Tensor) -> None:
        """Notes a tensor that is about to become data."""
        self._references.append(ref(tensor))

    def tidy(self) -> None:
        """Forgets the dead, when there are many notes."""
        if len(self._references) > self._bound:
            with self._lock:
                # Others append meanwhile: only what was there is replaced, in one step.
                count = len(self._references)
                self._references[:count] = [r for r in self._references[:count] if r() is not None]
                self._bound = max(_FIRST_BOUND, 2 * len(self._references))

    def nbytes(self) -> int:
        """The bytes that they hold now; a storage that several share counts once."""
        tensors = [t for t in (r() for r in list(self._references)) if t is not None]
        storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
        return sum(storages.values())


HELD = HeldTensors()
"""Of this process: backends of this class share it, as they share the memory."""


def memory_of(place: torch.device) -> dict[str, int]:
    """``bytes_free`` and ``bytes_total`` of a device's memory; empty where the system does not tell."""
    if place.type == "cuda":
        free, total = torch.cuda.mem_get_info(place)
        return {"bytes_free": free, "bytes_total": total}
    # Linux: what a program may still take, caches that would be given up included.
    source = Path("/proc/meminfo")
    text = source.read_text(encoding="ascii") if source.exists() else ""
    found = {
        name: int(kib) << 10 for name, kib in re.findall(r"^(MemAvailable|MemTotal): +(\d+) kB", text, re.MULTILINE)
    }
    return {"bytes_free": found["MemAvailable"], "bytes_total": found["MemTotal"]} if len(found) == 2 else {}
