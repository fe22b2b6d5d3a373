"""Programs: what a backend makes of a lowered computation, now or in an earlier process."""

from __future__ import annotations

import platform

import torch

from torchport import metrics
from torchport.backend import BackendImplInterface, Computation
from torchport.runtime import disk_cache

_UNCACHED = metrics.counter("UncachedCompile")
_FROM_DISK = metrics.counter("DiskCachedCompile")
_DAMAGED = metrics.counter("DiskCacheError")


class FailedComputation(Computation):
    """What a compiler failed on: executing it raises why."""

    def __init__(self, computation: Computation, error: Exception) -> None:
        super().__init__(computation.name, computation.graph, computation.devices, {}, computation.cause)
        self.error = error


def compile_computation(backend: BackendImplInterface, computation: Computation) -> Computation:
    """The compiled computation, from the disk if it is there. One whose compiler failed says so when it is run."""
    if not backend.capabilities.serialization or disk_cache.cache_folder() is None:
        return _compiled_by(backend, computation)
    key = disk_cache.key_of(
        torch.__version__,
        platform.python_version(),
        platform.machine(),
        f"{type(backend).__module__}.{type(backend).__qualname__}",
        backend.cache_key(),
        ", ".join(map(str, computation.devices)),
        repr(sorted(computation.aliases.items())),
        computation.graph.hash,
    )
    payload = disk_cache.load(key)
    if payload is not None:
        try:
            found = backend.deserialize_computation(payload, computation)
        except ValueError:
            _DAMAGED.value += 1
        else:
            _FROM_DISK.value += 1
            return found
    made = _compiled_by(backend, computation)
    if not isinstance(made, FailedComputation):
        try:
            payload = backend.serialize_computation(made)
        except NotImplementedError:
            return made  # this one has no such form: another compiler has stood in, say
        disk_cache.store(key, payload)
    return made


def _compiled_by(backend: BackendImplInterface, computation: Computation) -> Computation:
    """The compiled computation, checked against the contract."""
    _UNCACHED.value += 1
    name = type(backend).__name__
    try:
        answer = backend.compile([computation])
        if not isinstance(answer, list) or len(answer) != 1 or not isinstance(answer[0], Computation):
            raise TypeError(
                f"{name}.compile() has to return a list with a computation for each that it was given; it returned "
                f"{answer!r}"
            )
    except Exception as error:  # noqa: BLE001 - a stranger's compiler: its error belongs to who reads the results
        return FailedComputation(computation, error)
    return answer[0]
