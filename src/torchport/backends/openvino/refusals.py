"""Operators that OpenVINO's converter does not take, or gets wrong, as seen with openvino 2026.4.1."""

from __future__ import annotations

REFUSED: dict[str, str] = {}
"""Operator → why."""
