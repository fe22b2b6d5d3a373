"""The XLA backend: graphs become programs of jax. See README.md in this folder."""

from torchport.backends.xla.backend import XlaBackend
from torchport.backends.xla.options import XlaOptions

__all__ = ["XlaBackend", "XlaOptions"]
