"""The compile cache in memory: compiled computations by what they were compiled from, the oldest dropped first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class LruCache(Generic[T]):
    """A mapping that keeps the ``limit`` most recently used entries. The caller locks."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        """The entry, now the most recent one; ``None`` when there is none."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Hashable, entry: T) -> None:
        """Adds an entry and drops the least recently used ones beyond the limit."""
        self._entries[key] = entry
        while len(self._entries) > self.limit:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Drops everything."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
