"""Payloads of torchport's onnxruntime backend: ONNX models."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from torchport_runtime.backends import Availability
from torchport_runtime.compiled import CompiledBackend, ProgramHeader

Array = np.ndarray[Any, Any]
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


class Session:
    """A model that is loaded; threads may run it at once.

    Args:
        model: the bytes of an ``.onnx`` file whose inputs are named ``input_0``, ``input_1``, ….
        threads: within one operator.
        optimization: how far the model is rewritten.

    Raises:
        ValueError: there is no such level of optimization.
        Exception: of ONNX Runtime: it cannot load the model.
    """

    def __init__(self, model: bytes, threads: int, optimization: str = "all") -> None:
        runtime: Any = import_module("onnxruntime")
        if optimization not in _LEVELS:
            raise ValueError(f"optimization={optimization!r}: the levels are {', '.join(_LEVELS)}")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, _LEVELS[optimization])
        self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._names = [i.name for i in self._session.get_inputs()]
        # A model has no input for what it does not read.
        self._positions = [int(name.removeprefix("input_")) for name in self._names]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs, new arrays; the inputs are row-major."""
        given = {name: arrays[i] for name, i in zip(self._names, self._positions, strict=True)}
        made: list[Array] = self._session.run(None, given)
        return made


class OnnxruntimeBackend(CompiledBackend):
    """Runs ONNX models with ONNX Runtime, on the CPU."""

    def is_available(self) -> Availability:
        """Whether ONNX Runtime is installed."""
        if find_spec("onnxruntime") is None:
            return Availability(False, 'onnxruntime is not installed: pip install "torchport-runtime[onnxruntime]"')
        return Availability(True)

    def load_program(self, body: memoryview, header: ProgramHeader) -> Callable[[list[Array]], Sequence[Array]]:
        """The model of a body."""
        session = Session(bytes(body), os.cpu_count() or 1)

        def run(arrays: list[Array]) -> Sequence[Array]:
            return session.run([np.ascontiguousarray(a) for a in arrays])

        return run
