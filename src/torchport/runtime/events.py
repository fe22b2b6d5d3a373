"""What happened and on which line: compiles, reads, cuts, fallbacks. ``explain()`` reads it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from torchport.ir.location import Location


class EventKind(StrEnum):
    """The kinds of things that a user may want explained."""

    COMPILE = "compile"
    READ = "read"
    CUT = "cut"
    FALLBACK = "fallback"
    UNDEFERRED = "undeferred"
    BACKEND = "backend"
    CAPTURE = "capture"


@dataclass(slots=True)
class Event:
    """One occurrence, or several of the same kind, cause and line."""

    kind: EventKind
    cause: str
    location: Location
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        where = f" at {self.location}" if self.location is not None else ""
        return f"{self.kind}: {self.cause}{where}{times}"


_LIMIT = 1000
_events: deque[Event] = deque(maxlen=_LIMIT)
_latest: dict[tuple[EventKind, str, str], Event] = {}


def record_event(kind: EventKind, cause: str, location: Location) -> None:
    """Notes an occurrence; repetitions on the same line are counted, not listed."""
    key = (kind, cause, str(location))
    event = _latest.get(key)
    if event is not None:
        event.count += 1
        return
    if len(_latest) >= 2 * _LIMIT:
        _latest.clear()
    event = _latest[key] = Event(kind, cause, location)
    _events.append(event)


def events() -> list[Event]:
    """The last occurrences, oldest first."""
    return list(_events)


def clear_events() -> None:
    """Forgets them."""
    _events.clear()
    _latest.clear()
