"""The IREE backend: graphs become programs of IREE's virtual machine. See README.md in this folder."""

from torchport.backends.iree.backend import IreeBackend
from torchport.backends.iree.options import IreeOptions

__all__ = ["IreeBackend", "IreeOptions"]
