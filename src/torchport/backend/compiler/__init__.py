"""A backend from a compiler for graphs: the small base class, and what all such backends share."""

from torchport.backend.compiler.base import CompilerBackend
from torchport.backend.compiler.decompositions import core_decompositions
from torchport.backend.compiler.program import CompilerInput, Executable

__all__ = ["CompilerBackend", "CompilerInput", "Executable", "core_decompositions"]
