"""Counters: named whole numbers that only grow, cheap enough for the traced path.

Hot code keeps the object and adds to its attribute::

    _launches = counter("MarkStep")
    ...
    _launches.value += 1

Such an addition is one read and one write. On a Python with a global lock no thread is switched between the two, so
none is lost; on a free-threaded one a rare addition may be, which a figure for people can bear and a lock in the traced
path cannot.
"""

from __future__ import annotations


class Counter:
    """How often something happened.

    Attributes:
        name: as in the report.
        value: since the last reset; add to it.
    """

    __slots__ = ("name", "value")
    name: str
    value: int

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = 0

    def __repr__(self) -> str:
        return f"Counter({self.name!r}, {self.value})"


_counters: dict[str, Counter] = {}


def counter(name: str) -> Counter:
    """The counter of this name, made at the first call. The object stays the same for the life of the process."""
    found = _counters.get(name)
    # setdefault, so that two threads that make it at once get one object.
    return found if found is not None else _counters.setdefault(name, Counter(name))


def increment(name: str, n: int = 1) -> None:
    """Adds ``n`` to the counter of this name."""
    counter(name).value += n


def counter_names() -> list[str]:
    """The names of the counters that have counted something since the last reset, sorted."""
    return sorted(c.name for c in list(_counters.values()) if c.value > 0)


def counter_value(name: str) -> int:
    """What the counter of this name has counted since the last reset; 0 when there is no such counter."""
    found = _counters.get(name)
    return found.value if found is not None else 0


def reset_counters() -> None:
    """Sets every counter to 0. The objects stay, so that references to them remain valid."""
    for c in list(_counters.values()):
        c.value = 0
