"""What a user may ask of OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class OpenvinoOptions:
    """Options of the OpenVINO backend.

    Attributes:
        precision: ``f32``, or ``bf16`` to compute with half of the digits on processors that do that faster.
        threads: within one call; 0 for as many as PyTorch has.
    """

    precision: Literal["f32", "bf16"] = "f32"
    threads: int = 0
