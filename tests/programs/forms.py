"""Forms of statements: functions that write one statement, each with a weight that says how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from programs.scene import Scene


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of statement.

    Attributes:
        write: adds one statement of it to the scene, or raises ``Unavailable``.
        weight: how often, compared with others.
        in_threads: whether it has one outcome when two programs run at once.
    """

    write: Callable[[Scene], None]
    weight: int = 1
    in_threads: bool = True


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16)
COMPLEXES = (torch.complex64, torch.complex128)
DTYPES = (
    *(torch.float32,) * 6,
    *(torch.int64,) * 3,
    torch.bool,
    torch.bool,
    torch.float64,
    torch.int32,
    torch.uint8,
    torch.complex64,
    torch.complex64,
    torch.float16,
    torch.bfloat16,
    torch.int16,
    torch.int8,
    torch.complex128,
)
"""Dtypes as often as they are drawn."""


def broadcast_source(scene: Scene, target: torch.Tensor, *conditions: Callable[[torch.Tensor], bool]) -> str:
    """The name of a tensor that can be broadcast to the target's sizes; now and then one that cannot.

    Raises:
        Unavailable: there is none.
    """
    if scene.once_in(15):
        return scene.name(*conditions)

    def broadcasts(t: torch.Tensor) -> bool:
        return t.dim() <= target.dim() and all(
            n in (1, m) for n, m in zip(reversed(t.shape), reversed(target.shape), strict=False)
        )

    return scene.name(broadcasts, *conditions)


def compatible(scene: Scene, t: torch.Tensor, *conditions: Callable[[torch.Tensor], bool]) -> str:
    """The name of a tensor whose sizes broadcast together with those of ``t``; now and then one whose do not.

    Raises:
        Unavailable: there is none.
    """
    if scene.once_in(20):
        return scene.name(*conditions)

    def broadcasts(other: torch.Tensor) -> bool:
        return all(n in (1, m) or m == 1 for n, m in zip(reversed(other.shape), reversed(t.shape), strict=False))

    return scene.name(broadcasts, *conditions)
