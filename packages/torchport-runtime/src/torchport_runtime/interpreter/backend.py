"""Payloads of torchport's interpreter: the graph's text, run in numpy."""

from __future__ import annotations

from typing import Any

from torchport_runtime.backends import Part, RuntimeBackend
from torchport_runtime.errors import DamagedFileError, IRSyntaxError
from torchport_runtime.interpreter.program import Program
from torchport_runtime.plain import parse_graph


class NumpyBackend(RuntimeBackend):
    """Runs graphs through numpy."""

    def load(self, payload: memoryview, options: Any) -> Part:
        """The graph of a payload, ready to run."""
        try:
            graph = parse_graph(bytes(payload).decode())
        except (IRSyntaxError, UnicodeDecodeError) as error:
            raise DamagedFileError(f"the payload is no graph: {error}") from error
        return Program(graph, {})
