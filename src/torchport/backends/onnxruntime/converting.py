"""From a graph of core ATen to an ONNX model, with PyTorch's exporter."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from functools import cache

import torch
from torch._ops import OpOverload
from torch.onnx._internal.exporter._registration import ONNXRegistry

from torchport.backend.compiler import CompilerInput


@cache
def _registry() -> ONNXRegistry:
    with _quiet():
        return ONNXRegistry.from_torchlib()


def has_form(op: OpOverload) -> bool:
    """Whether the exporter can write the operator in ONNX's."""
    return bool(_registry().is_registered(op))


def to_onnx(program: CompilerInput) -> bytes:
    """The model of a graph: inputs ``input_0``, ``input_1``, … that it reads, outputs in order.

    Raises:
        Exception: of the exporter: it cannot.
    """
    with _quiet():
        count = len(program.inputs)
        exported = torch.onnx.export(
            program.exported(),
            dynamo=True,
            verbose=False,
            input_names=[f"input_{i}" for i in range(count)],
            output_names=[f"output_{i}" for i in range(len(program.outputs))],
        )
    assert exported is not None
    model: bytes = exported.model_proto.SerializeToString()
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that nobody asked for."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    loggers += [logging.getLogger("torch.onnx._internal.exporter._registration")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
