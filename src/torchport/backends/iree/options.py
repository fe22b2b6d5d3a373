"""What a user may ask of IREE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class IreeOptions:
    """Options of the IREE backend.

    Attributes:
        target_cpu: the processor that is compiled for, by LLVM's name: ``x86-64-v4``, ``cortex-a78``, …; ``host`` for
            this one. It is always named: code for ``generic`` processors is up to thirty times slower.
        target_triple: the machine that is compiled for, by LLVM's name; this one, where it is empty.
        level: how much the compiler does for speed, ``O0`` to ``O3``.
        data_tiling: matrices are laid out anew for the processor.
        driver: ``local-task`` runs on all cores, ``local-sync`` on the caller's thread.
    """

    target_cpu: str = "host"
    target_triple: str = ""
    level: Literal["O0", "O1", "O2", "O3"] = "O3"
    data_tiling: bool = True
    driver: Literal["local-task", "local-sync"] = "local-task"

    def flags(self) -> list[str]:
        """The flags of ``iree-compile`` that they stand for."""
        found = [f"--iree-llvmcpu-target-cpu={self.target_cpu}", f"--iree-opt-level={self.level}"]
        found.append("--iree-input-demote-f64-to-f32=false")  # numbers are computed in what the graph says
        if self.target_triple:
            found.append(f"--iree-llvmcpu-target-triple={self.target_triple}")
        if self.data_tiling:
            found.append("--iree-opt-data-tiling")
        return found
