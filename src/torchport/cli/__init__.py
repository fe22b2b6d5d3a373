"""The command ``torchport``."""

from __future__ import annotations

from torchport.cli.app import main

__all__ = ["main"]
