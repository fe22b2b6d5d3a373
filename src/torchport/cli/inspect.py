"""``torchport inspect``: what is in a saved module; the same as ``torchport-runtime inspect``."""

from torchport_runtime.command.inspect import SUMMARY, add_arguments, run

__all__ = ["SUMMARY", "add_arguments", "run"]
