"""What a user may ask of ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OnnxruntimeOptions:
    """Options of the ONNX Runtime backend.

    Attributes:
        optimization: how far the model is rewritten when it is loaded: ``none``, ``basic``, ``extended`` or ``all``.
        threads: within one operator; 0 for as many as PyTorch has.
        check: each model's results are compared with PyTorch's for random inputs when it is compiled.
    """

    optimization: str = "all"
    threads: int = 0
    check: bool = True
