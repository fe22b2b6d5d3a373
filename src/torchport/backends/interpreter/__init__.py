"""The interpreter backend: the reference and the default. See README.md in this folder."""

from torchport.backends.interpreter.backend import InterpreterBackend
from torchport.backends.interpreter.computation import InterpretedComputation

__all__ = ["InterpretedComputation", "InterpreterBackend"]
