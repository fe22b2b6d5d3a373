"""Families: graphs that differ in sizes only, and the one program that runs them all.

The first graph of a family is compiled for its sizes. The second one tells which integers differ; those that were equal
in each of the graphs are one symbol, and a program with these symbols is compiled. A third graph is checked against it:
where every integer that was the same still is, and every symbol has one value, it needs no compile. Nothing is guessed,
so nothing can be stale: a graph that does not fit makes the symbols finer, and is compiled.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from torchport.backend import Computation
from torchport.config import settings
from torchport.runtime.cache import LruCache


@dataclass(slots=True)
class Family:
    """Graphs with one skeleton.

    Attributes:
        classes: for each integer of the skeleton, the number of its class: integers of one class were equal in every
            graph so far.
        values: class → its integer, where that was the same in every graph so far; else ``None``.
        computation: the program with symbols; ``None`` before there were two graphs.
        added: for each node of the program, the positions of the integers that it takes as numbers.
        compiles: whether the backend could compile it; if not, each size stays a graph of its own.
    """

    classes: list[int]
    values: list[int | None]
    computation: Computation | None = None
    added: list[list[int]] = field(default_factory=list)
    compiles: bool = True

    @classmethod
    def of_integers(cls, integers: list[int]) -> Family:
        """The family of one graph: equal integers are one class."""
        numbering: dict[int, int] = {}
        classes = [numbering.setdefault(n, len(numbering)) for n in integers]
        return cls(classes, list(numbering))

    def admits(self, integers: list[int]) -> bool:
        """Whether a graph with these integers is one of those that the program was compiled for."""
        found: list[int | None] = list(self.values)
        for c, n in zip(self.classes, integers, strict=True):
            if found[c] is None:
                found[c] = n
            elif found[c] != n:
                return False
        return True

    def with_graph(self, integers: list[int]) -> Family:
        """The family with classes as fine as a graph with these integers needs them; it has no program yet."""
        numbering: dict[tuple[int, int], int] = {}
        classes = [numbering.setdefault(key, len(numbering)) for key in zip(self.classes, integers, strict=True)]
        return Family(classes, [n if n == self.values[c] else None for c, n in numbering])

    def symbols(self) -> list[str | None]:
        """For each integer the name of its symbol; ``None`` for one that is the same in every graph."""
        names: dict[int, str] = {}
        return [None if self.values[c] is not None else names.setdefault(c, f"s{len(names)}") for c in self.classes]


class Families:
    """The families of this process, by what their graphs have in common. The caller locks."""

    def __init__(self) -> None:
        self._families: LruCache[Family] = LruCache(settings.compile_cache_entries)

    def get(self, key: Hashable, integers: list[int]) -> Family | None:
        """The family of a skeleton; ``None`` for its first graph, whose integers are kept."""
        family = self._families.get(key)
        if family is None:
            self.put(key, Family.of_integers(integers))
        return family

    def put(self, key: Hashable, family: Family) -> None:
        """Keeps a family, in place of the one that was there."""
        self._families.limit = settings.compile_cache_entries
        self._families.put(key, family)
