"""Why something was compiled, cut, refused, recompiled or synced: cause and the user's line."""

from __future__ import annotations

from torchport.runtime.events import EventKind, events

_HEADINGS = {
    EventKind.BACKEND: "Backends",
    EventKind.COMPILE: "Compiled",
    EventKind.CAPTURE: "Captured steps that were traced again, or could not be captured",
    EventKind.READ: "Synced because a value was read (move the read out of the loop, or read once per epoch)",
    EventKind.UNDEFERRED: "Synced because an operator cannot be deferred",
    EventKind.CUT: "Cut because the graph grew without a barrier (call torchport.sync() once per step)",
    EventKind.FALLBACK: "Ran eagerly, outside of the backend",
}


def explain() -> str:
    """A report of what happened so far, by kind, each with its cause and the user's line.

    Repetitions on one line are counted. The last 1,000 distinct occurrences are kept.
    """
    lines: list[str] = []
    happened = events()
    for kind, heading in _HEADINGS.items():
        chosen = [e for e in happened if e.kind is kind]
        if chosen:
            lines.append(f"{heading}:")
            for event in chosen:
                where = str(event.location) if event.location is not None else "(no line of yours)"
                times = f"  x{event.count}" if event.count > 1 else ""
                lines.append(f"  {where}: {event.cause}{times}")
    return "\n".join(lines) or "Nothing was compiled, read, cut or run eagerly yet."
