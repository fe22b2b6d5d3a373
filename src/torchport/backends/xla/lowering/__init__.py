"""Core ATen in ``jax.numpy`` and ``jax.lax``: a table, split by family."""

from torchport.backends.xla.lowering.table import lowered, refusal

__all__ = ["lowered", "refusal"]
