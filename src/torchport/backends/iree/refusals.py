"""Operators that IREE's CPU compiler does not lower, or not right, as seen with iree-base-compiler 3.13.0."""

from __future__ import annotations

REFUSED: dict[str, str] = {}
"""Operator → why."""
