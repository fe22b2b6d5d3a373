"""The device's random numbers: one generator, the backend's, advanced by random operations in the order of the trace.

A seed is set in that order too: operations that were traced before it draw from the old state.
"""

from __future__ import annotations

import torch

from torchport.backend import BackendImplInterface, SyncCause
from torchport.errors import UnsupportedOperationError
from torchport.lazy import active
from torchport.lazy.source import user_location
from torchport.lazy.sync import launch
from torchport.lazy.trace import LOCK
from torchport.runtime.execution import executor

_seed = torch.default_generator.initial_seed()


def seed_backend(backend: BackendImplInterface) -> None:
    """Gives a backend that has just become active the seed that the program has set last."""
    backend.set_rng_seed(_seed)


def manual_seed(seed: int) -> None:
    """Starts the device's generator again from ``seed``; ``torch.manual_seed`` calls it."""
    global _seed
    _seed = int(seed) & 0xFFFF_FFFF_FFFF_FFFF
    with LOCK:
        backend = active.active_backend()
        if backend is None:
            return
        _settle()
        backend.set_rng_seed(_seed)


def initial_seed() -> int:
    """The seed that was set last."""
    return _seed


def get_rng_state() -> torch.Tensor:
    """The state of the device's generator, a byte tensor on the CPU.

    Raises:
        UnsupportedOperationError: the active backend does not tell it.
    """
    with LOCK:
        _settle()
        state: torch.Tensor = _stateful_backend().get_rng_state()
        return state


def set_rng_state(state: torch.Tensor) -> None:
    """Puts the device's generator into a state that :func:`get_rng_state` returned.

    Raises:
        UnsupportedOperationError: the active backend has no such state.
    """
    with LOCK:
        _settle()
        _stateful_backend().set_rng_state(state)


def _settle() -> None:
    if active.trace.has_random:
        launch(SyncCause.EAGER, user_location())
    executor.wait_all()


def _stateful_backend() -> BackendImplInterface:
    backend = active.backend()
    if not backend.capabilities.random_state:
        raise UnsupportedOperationError(
            f"the backend {type(backend).__name__} does not let the state of its generator be read or set "
            "(Capabilities.random_state); use torch.manual_seed() to repeat random numbers"
        )
    return backend
