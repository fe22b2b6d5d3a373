"""Where the boxes of a graph go: in layers from inputs to results, near what they are connected to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ROW = 64
GAP = 14
_SWEEPS = 4


@dataclass(slots=True)
class Box:
    """A box of a drawing.

    Attributes:
        lines: what stands in it.
        kind: its class in the page's style: ``input``, ``operator``, ``part`` or ``result``.
        hint: what a pointer over it shows.
        sources: the positions of the boxes that lead to it.
    """

    lines: tuple[str, ...]
    kind: str
    hint: str
    sources: tuple[int, ...] = ()
    x: float = 0
    y: float = 0

    @property
    def width(self) -> float:
        """In pixels: some seven a character."""
        return max(60, max(len(line) for line in self.lines) * 6.7 + 18)


def place(boxes: Sequence[Box]) -> tuple[float, float]:
    """Gives every box its centre; sources stand before their users. Returns the width and height of the drawing."""
    if not boxes:
        return 0, 0
    rows = _rows(boxes)
    neighbours = _neighbours(boxes)
    order = {i: float(k) for row in rows for k, i in enumerate(row)}
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {i: _mean([order[j] for j in neighbours[i][sweep % 2]], order[i]) for i in row}
            row.sort(key=lambda i: wanted[i])
            for k, i in enumerate(row):
                order[i] = float(k)
    for y, row in enumerate(rows):
        _spread(boxes, row, neighbours, y * ROW + ROW / 2)
    left = min(b.x - b.width / 2 for b in boxes)
    for box in boxes:
        box.x += GAP - left
    return max(b.x + b.width / 2 for b in boxes) + GAP, len(rows) * ROW


def _rows(boxes: Sequence[Box]) -> list[list[int]]:
    level = [0] * len(boxes)
    for i, box in enumerate(boxes):
        level[i] = 1 + max((level[j] for j in box.sources), default=-1)
    # What needs nothing stands right above its first user.
    users: list[list[int]] = [[] for _ in boxes]
    for i, box in enumerate(boxes):
        for j in box.sources:
            users[j].append(i)
    for j, box in enumerate(boxes):
        if not box.sources and users[j]:
            level[j] = max(0, min(level[i] for i in users[j]) - 1)
    rows: list[list[int]] = [[] for _ in range(max(level) + 1)]
    for i, y in enumerate(level):
        rows[y].append(i)
    return [row for row in rows if row]


def _neighbours(boxes: Sequence[Box]) -> Mapping[int, tuple[list[int], list[int]]]:
    found: dict[int, tuple[list[int], list[int]]] = {i: ([], []) for i in range(len(boxes))}
    for i, box in enumerate(boxes):
        for j in box.sources:
            found[i][0].append(j)
            found[j][1].append(i)
    return found


def _spread(
    boxes: Sequence[Box], row: list[int], neighbours: Mapping[int, tuple[list[int], list[int]]], y: float
) -> None:
    """Each box under the middle of its sources, or as near to it as the ones before it allow."""
    right = float("-inf")
    moved = 0.0
    for i in row:
        box = boxes[i]
        box.y = y
        wanted = _mean([boxes[j].x for j in neighbours[i][0]], 0 if right == float("-inf") else right + GAP)
        box.x = max(wanted, right + GAP + box.width / 2)
        moved += box.x - wanted
        right = box.x + box.width / 2
    for i in row:
        boxes[i].x -= moved / len(row)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
