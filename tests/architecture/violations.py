"""How a test of many places fails: with every one of them."""

from __future__ import annotations

import pytest


def none_of(violations: list[str]) -> None:
    """Fails with all of the violations in full, one a line."""
    if violations:
        pytest.fail("\n".join(violations), pytrace=False)
