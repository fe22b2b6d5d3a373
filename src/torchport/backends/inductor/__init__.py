"""The Inductor backend: PyTorch's own compiler, given whole steps. See README.md in this folder."""

from torchport.backends.inductor.backend import InductorBackend
from torchport.backends.inductor.options import InductorOptions

__all__ = ["InductorBackend", "InductorOptions"]
