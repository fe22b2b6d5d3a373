"""What a user may ask of XLA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class XlaOptions:
    """Options of the XLA backend.

    Attributes:
        precision: of matrix products and convolutions in float32: ``highest`` is all of float32 on every platform,
            ``default`` is what the platform does fastest.
        platforms: for which platforms a file is exported, separated by ``+``: ``cpu``, ``cuda``, ``rocm``, ``tpu``; the
            one that jax uses here, where it is empty.
    """

    precision: Literal["default", "high", "highest"] = "highest"
    platforms: str = ""
