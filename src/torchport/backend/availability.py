"""Whether a backend can be used here, and why not."""

from __future__ import annotations

from dataclasses import dataclass

from torchport.backend.capabilities import Capabilities

_MINIMUM = Capabilities()


@dataclass(frozen=True, slots=True)
class Availability:
    """What ``torchport.backends()`` says of one backend.

    A backend may define a classmethod ``availability()`` that returns one of these, without importing its compiler
    where that is slow. ``version`` and ``capabilities`` that it leaves out are filled in by the registry.

    Attributes:
        available: whether it can be activated here and now.
        reason: what is in the way, and what to do about it; empty when nothing is.
        version: of the backend, or of the distribution that brings it; empty when not known.
        capabilities: what it can do beyond the minimum.
    """

    available: bool
    reason: str = ""
    version: str = ""
    capabilities: Capabilities = _MINIMUM

    def __bool__(self) -> bool:
        return self.available
