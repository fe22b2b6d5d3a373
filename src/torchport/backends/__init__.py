"""The built-in backends, a folder each, found by entry point as a stranger's are.

The package is callable, because ``torchport.backends()`` is also the function that lists what is installed.
"""

from __future__ import annotations

import sys
from types import ModuleType

from torchport.backend.availability import Availability
from torchport.backend.registering import backends as _backends


class _CallablePackage(ModuleType):
    def __call__(self) -> dict[str, Availability]:
        """Each backend by name: whether it can be used here, why not, its version, what it can do."""
        return _backends()


sys.modules[__name__].__class__ = _CallablePackage
