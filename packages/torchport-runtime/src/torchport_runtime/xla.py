"""Payloads of torchport's xla backend: StableHLO, as ``jax.export`` writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from torchport_runtime.backends import Availability
from torchport_runtime.compiled import CompiledBackend, ProgramHeader

Array = np.ndarray[Any, Any]


class XlaBackend(CompiledBackend):
    """Runs StableHLO with jax, on the platform that jax uses here."""

    def is_available(self) -> Availability:
        """Whether jax is installed, and what reads exported programs."""
        missing = [name for name in ("jax", "flatbuffers") if find_spec(name) is None]
        if missing:
            return Availability(
                False, f'{" and ".join(missing)} is not installed: pip install "torchport-runtime[xla]"'
            )
        return Availability(True)

    def load_program(self, body: memoryview, header: ProgramHeader) -> Callable[[list[Array]], Sequence[Array]]:
        """The program of a body, compiled for this machine."""
        jax: Any = import_module("jax")
        export: Any = import_module("jax.export")
        with jax.enable_x64(True):
            call = jax.jit(export.deserialize(bytearray(body)).call)

        def run(arrays: list[Array]) -> Sequence[Array]:
            with jax.enable_x64(True):
                return [np.array(x) for x in call(*arrays)]

        return run
