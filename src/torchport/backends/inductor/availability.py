"""Whether there is a C++ compiler, asked without importing Inductor."""

from __future__ import annotations

import os
import shutil
import sys


def missing_compiler() -> str:
    """Why no C++ compiler can be used here; empty where one can.

    Inductor takes the one that the environment variable ``CXX`` names, else ``g++``, on macOS ``clang++``
    (``torch._inductor.config.cpp.cxx``).
    """
    named = os.environ.get("CXX")
    if named:
        return "" if shutil.which(named) else f"the environment variable CXX names {named!r}, which is not found"
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return "" if shutil.which(usual) else f"{usual} is not found"
