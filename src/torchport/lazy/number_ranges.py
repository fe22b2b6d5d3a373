"""Numbers that a dtype cannot hold: eager refuses them when an operator is called, so they are found while tracing.

A number is no part of a call, so that one that changes costs no compile; eager's answer to it is. As long as a number
lies in the range of every dtype of the call there is nothing to ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.ir.call import Call
from torchport.ir.inference import DynamicOutput, infer

_REMEMBERED = 256


@lru_cache(maxsize=1024)
def _common(dtypes: frozenset[torch.dtype]) -> tuple[float, float]:
    low, high = float("-inf"), float("inf")
    for dtype in dtypes - {torch.bool}:  # every number is a truth value
        limits = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
        low, high = max(low, limits.min), min(high, limits.max)
    return low, high


class NumberRange:
    """The numbers that a call takes: those in the range of all its dtypes, and those that eager was asked about.

    Args:
        call: a call with numbers among its arguments.
    """

    __slots__ = ("_accepted", "_call", "_high", "_low")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._accepted: set[tuple[Any, ...]] = set()
        self._low, self._high = _common(frozenset(s.dtype for s in (*call.inputs, *call.outputs) if s is not None))

    def check(self, numbers: Iterable[Any]) -> None:
        """Raises eager's error if it refuses one of them."""
        low, high = self._low, self._high
        for n in numbers:
            if type(n) is complex or not low <= n <= high:
                break
        else:
            return
        key = tuple(numbers)
        if key in self._accepted:
            return
        call = self._call
        assert isinstance(call.op, OpOverload)  # those of ours take what they are given
        with suppress(DynamicOutput):  # eager has run it; its sizes are not the question
            infer(call.op, call.args, dict(call.kwargs), call.inputs, list(key))
        if len(self._accepted) >= _REMEMBERED:
            self._accepted.clear()
        self._accepted.add(key)


def check_fill(sizes: tuple[int, ...], dtype: torch.dtype, number: bool | int | float | complex) -> None:
    """Raises eager's error if a tensor of these sizes and dtype cannot be filled with the number."""
    low, high = _common(frozenset((dtype,)))
    if type(number) is complex or not low <= number <= high:  # type: ignore[operator]
        torch.empty([min(n, 2) for n in sizes], dtype=dtype).fill_(number)  # eager takes more for a single element
