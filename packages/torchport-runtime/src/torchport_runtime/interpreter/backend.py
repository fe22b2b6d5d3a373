"""Payloads of torchport's interpreter: the graph's text, run in numpy."""

from __future__ import annotations

from typing import Any

from torchport_runtime.backends import Part, RuntimeBackend
from torchport_runtime.interpreter.program import Program
from torchport_runtime.plain import parse_graph


class NumpyBackend(RuntimeBackend):
    """Runs graphs through numpy."""

    def load(self, payload: memoryview, options: Any) -> Part:
        """The graph of a payload, ready to run."""
        return Program(parse_graph(bytes(payload).decode()), {})
