"""Runs modules that torchport has lowered and saved, on machines without PyTorch.

::

    import torchport_runtime

    program = torchport_runtime.load("model.tport")
    program.forward(array)
"""

from torchport_runtime.backends import Availability, RuntimeBackend, backend_names, register_backend
from torchport_runtime.program import Method, Program, load

__all__ = ["Availability", "Method", "Program", "RuntimeBackend", "backend_names", "load", "register_backend"]
