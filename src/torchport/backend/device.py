"""Concrete devices: the hardware that stands behind the virtual one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class BackendDeviceType:
    """A kind of hardware, as the backend names it: ``CPU``, ``CUDA``, ``TPU``, …"""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, order=True, slots=True)
class BackendDevice:
    """One piece of hardware: a type and an ordinal. Equal, ordered, hashable; prints as ``CPU0``."""

    type: BackendDeviceType
    ordinal: int = 0

    def __str__(self) -> str:
        return f"{self.type}{self.ordinal}"
