"""The strategy: a program, statement by statement, and in one of ten two threads after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from programs.forms import Form
from programs.program import Program
from programs.scene import Scene, Unavailable
from programs.statements import factories, gradients, indexing, operators, randomness, reading, views, writes

FORMS: list[Form] = [
    form
    for module in (factories, views, writes, operators, indexing, randomness, gradients, reading)
    for form in module.FORMS
]
_ALL = [form for form in FORMS for _ in range(form.weight)]
_CONCURRENT = [form for form in _ALL if form.in_threads]
_FACTORIES = factories.FORMS[:4]

MOST_STATEMENTS = 24
MOST_IN_A_THREAD = 8


def _write(scene: Scene, forms: list[Form], most: int, ends_once_in: int) -> None:
    for _ in range(most):
        # Drawn before each statement, so that a shrunk program loses statements one by one.
        if scene.integer(0, ends_once_in) == 0:
            break
        if reading.crowded(scene):
            reading.forgotten(scene)
        form = scene.choice(forms) if scene.tensors else scene.choice(_FACTORIES)
        try:
            form.write(scene)
        except Unavailable:
            continue


def written(draw: Callable[[Any], Any]) -> Program:
    """A program, most of whose statements eager accepts.

    Args:
        draw: gives a value of a strategy.
    """
    scene = Scene(draw)
    _write(scene, _ALL, MOST_STATEMENTS, 24)
    if not scene.once_in(10) or not scene.tensors:
        return scene.program()
    threads = []
    for prefix in ("a", "b"):
        thread = Scene(draw, prefix, outer=scene)
        _write(thread, _CONCURRENT, MOST_IN_A_THREAD, 12)
        threads.append(thread.program())
    return scene.program(tuple(threads))


programs = st.composite(written)
"""The strategy of such programs."""
