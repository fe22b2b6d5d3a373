"""Payloads of torchport's openvino backend: a model's XML, and its weights where it has any."""

from __future__ import annotations

import queue
import struct
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from torchport_runtime.backends import Availability
from torchport_runtime.compiled import CompiledBackend, ProgramHeader
from torchport_runtime.errors import DamagedFileError

Array = np.ndarray[Any, Any]


@cache
def openvino_package() -> Any:
    """OpenVINO, without its reports on its use: on import it sends one, from a process that it forks."""
    if find_spec("openvino_telemetry") is not None:
        sender: Any = import_module("openvino_telemetry.backend.backend_ga4").GA4Backend
        sender.send = lambda self, message: None
    return import_module("openvino")


def packed(xml: bytes, weights: bytes) -> bytes:
    """Both parts of a model as one."""
    return struct.pack("<Q", len(xml)) + xml + weights


def unpacked(content: bytes | memoryview) -> tuple[bytes, bytes]:
    """The parts of what :func:`packed` made.

    Raises:
        DamagedFileError: it is none of that.
    """
    content = bytes(content)
    if len(content) < 8:
        raise DamagedFileError("the payload is no OpenVINO model")
    (length,) = struct.unpack("<Q", content[:8])
    if length > len(content) - 8:
        raise DamagedFileError(f"the payload's model would have {length} bytes; {len(content) - 8} are there")
    return content[8 : 8 + length], content[8 + length :]


class CompiledModel:
    """A model, compiled for the CPU.

    OpenVINO computes in bfloat16 on processors that have it unless it is told otherwise, and a request that threads
    share, or that reads a caller's memory, can give another request's results: so each call has a request of its own,
    and copies go in and out.

    Args:
        model: what ``openvino.Core().read_model`` or ``convert_model`` gave.
        precision: ``f32``, or ``bf16`` to compute with half of the digits.
        threads: within one call.
    """

    def __init__(self, model: Any, precision: str = "f32", threads: int = 0) -> None:
        openvino = openvino_package()
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads
        self._compiled = openvino.Core().compile_model(model, "CPU", settings)
        self._positions = [_position(port) for port in self._compiled.inputs]
        self._outputs = len(self._compiled.outputs)
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs, new arrays."""
        try:
            request = self._idle.get_nowait()
        except queue.Empty:
            request = self._compiled.create_infer_request()
        for k, i in enumerate(self._positions):
            request.get_input_tensor(k).data[...] = arrays[i]
        request.infer()
        results = [np.array(request.get_output_tensor(k).data) for k in range(self._outputs)]
        self._idle.put(request)
        return results


def _position(port: Any) -> int:
    """Which input of the graph a port is: a model has none for what it does not read."""
    for name in port.get_names():
        if name.startswith("input_"):
            return int(name.removeprefix("input_"))
    raise DamagedFileError(f"an input of the model has no name of ours: {sorted(port.get_names())}")


def read_model(content: bytes | memoryview) -> Any:
    """The model of a payload."""
    openvino = openvino_package()
    xml, weights = unpacked(content)
    return openvino.Core().read_model(xml, weights or b"\0")


class OpenvinoBackend(CompiledBackend):
    """Runs OpenVINO's models, on the CPU."""

    def is_available(self) -> Availability:
        """Whether OpenVINO is installed."""
        missing = [name for name in ("openvino", "packaging") if find_spec(name) is None]
        if missing:
            return Availability(
                False, f'{" and ".join(missing)} is not installed: pip install "torchport-runtime[openvino]"'
            )
        return Availability(True)

    def load_program(self, body: memoryview, header: ProgramHeader) -> Callable[[list[Array]], Sequence[Array]]:
        """The model of a body."""
        return CompiledModel(read_model(body), header.details.get("precision", "f32")).run
