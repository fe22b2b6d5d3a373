"""Views of views of views: every ATen view operator over every other, and a third over both (case 9).

What the CPU refuses (a matrix operator on a vector, say) the device refuses with the same type of error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lazy.cases.oracle import BARRIERS, check
from lazy.cases.test_every_view import VIEWS, as_list, label, write

REFUSALS = (RuntimeError, IndexError, TypeError, ValueError)


def is_safe(operator: str, t: torch.Tensor) -> bool:
    """Whether the operator checks that what it asks for lies in the tensor's memory; ``_reshape_alias`` does not."""
    return operator != "_reshape_alias" or (t.is_contiguous() and t.numel() == 24)


def chain(first: int, second: int, third: int, D: str, sync: Callable[[], None]) -> Any:
    """Three views deep, with the base a slice of another tensor if ``third`` is odd; a write at every depth."""
    _, make, _view = VIEWS[first]
    whole = make(D)
    base = torch.cat([whole, whole])[: whole.shape[0]] if third % 2 else whole
    levels = [base]
    refused: list[str] = []
    for row in (first, second, third):
        if not is_safe(VIEWS[row][0], levels[-1]):
            continue
        try:
            levels.append(as_list(VIEWS[row][2](levels[-1]))[-1])
        except REFUSALS as error:
            refused.append(f"{VIEWS[row][0]}: {type(error).__name__}")
        sync()
    for i, level in enumerate(reversed(levels)):
        try:
            write(level, i)
        except REFUSALS as error:  # cells that overlap
            refused.append(f"write {i}: {type(error).__name__}")
        sync()
    return levels, refused


@pytest.mark.parametrize("first", range(len(VIEWS)), ids=[f"{i} {label(row)}" for i, row in enumerate(VIEWS)])
def test_a_write_at_any_depth_is_seen_at_every_other(first: int) -> None:
    for second in range(len(VIEWS)):
        third = (7 * first + 11 * second) % len(VIEWS)
        try:
            check(
                lambda D, sync, second=second, third=third: chain(first, second, third, D, sync),
                BARRIERS[(first + second) % 3],
            )
        except AssertionError as error:
            names = " of ".join(VIEWS[i][0] for i in (third, second, first))
            raise AssertionError(f"{names} of a {VIEWS[first][1].__name__}") from error
