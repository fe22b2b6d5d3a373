"""What a user may ask of Inductor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InductorOptions:
    """Options of the Inductor backend.

    Attributes:
        cpp_wrapper: the code that calls the kernels is C++ too: less time per call, more to compile.
        max_autotune: matrix products are timed in several forms while compiling, and the fastest is taken.
        fast_math: floating-point arithmetic may be reordered; results differ from eager's by more than rounding.
    """

    cpp_wrapper: bool = False
    max_autotune: bool = False
    fast_math: bool = False

    def config(self) -> dict[str, object]:
        """The settings of ``torch._inductor.config`` that they stand for."""
        return {
            "cpp_wrapper": self.cpp_wrapper,
            "max_autotune": self.max_autotune,
            "cpp.enable_unsafe_math_opt_flag": self.fast_math,
        }
