"""What the lazy device works with now: the active backend, its builder and device, and the current trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch

from torchport.backend import (
    BackendDevice,
    BackendImplInterface,
    IrBuilder,
    LazyTensor,
    Shape,
    SyncCause,
    Value,
    has_backend,
)
from torchport.backend import get_backend as _get_backend
from torchport.config import settings
from torchport.ir.call import Call
from torchport.ir.location import Location
from torchport.lazy.trace import Trace

trace = Trace()
"""The operations that are pending. Replaced at every launch; read it through the module."""

device_type = settings.device_name
"""The name of the lazy device, as registered with torch."""

generation = 0
"""Changes with the backend: what was found out about a call holds for one backend."""

cut_due = False
"""The trace has grown past its bound; it is launched as soon as the operation at hand has its results."""

_backend: BackendImplInterface | None = None
_builder: IrBuilder | None = None


recorder: StepObserver | None = None
"""Who watches the run of a captured step; what happens in it that a replay could not repeat is told to it."""

host_mode: HostMode | None = None
"""Where operations on ordinary CPU tensors are being deferred: who adopts the storages of their results."""


class HostMode(Protocol):
    """What ``lazy_mode()`` gives to the kernels."""

    def adopt(self, storage: Any, lazy: LazyTensor) -> None:
        """Attaches a lazy tensor to the storage of a CPU tensor."""


class StepObserver(Protocol):
    """What watches the run of a captured step."""

    thread: int

    def interrupted(self, cause: SyncCause, location: Location) -> None:
        """The trace is launched before the step has ended."""

    def read(self) -> None:
        """A value is read on the host."""

    def uploaded(self, value: Value, tensor: torch.Tensor) -> None:
        """A host tensor became a leaf."""

    def backward_from(self, roots: Sequence[torch.Tensor]) -> None:
        """A backward pass has used up the graph behind these tensors."""


class NotDeferred(Exception):  # noqa: N818 - a signal, not an error
    """In ``lazy_mode()``: the operator has to run on the CPU tensors themselves."""


def _not_connected() -> None:
    raise AssertionError("torchport.lazy.switch, which knows how, is not imported")


activate_default: Callable[[], None] = _not_connected
"""Activates the backend of the settings; set by ``lazy.switch``, which builds on this module."""


def backend() -> BackendImplInterface:
    """The active backend; the one of the settings is activated at the first use."""
    global _backend
    if _backend is None:
        if not has_backend():
            activate_default()
        _backend = _get_backend()
    return _backend


def active_backend() -> BackendImplInterface | None:
    """The active backend, or ``None`` while none was needed yet."""
    return _get_backend() if has_backend() else None


def builder() -> IrBuilder:
    """The active backend's factory of nodes."""
    global _builder
    if _builder is None:
        _builder = backend().get_ir_builder()
    return _builder


def backend_device() -> BackendDevice:
    """The concrete device behind the virtual one."""
    return backend().get_backend_device(torch.device(settings.device_name, 0))


flush: Callable[[], None] = _not_connected
"""Launches what is pending and waits for it; set by ``lazy.switch``."""


def forget(*_: object) -> None:
    """Looks everything up again at the next use: the backend has changed."""
    global _backend, _builder, generation
    generation += 1
    _backend = _builder = None


def check_device(device: torch.device | None) -> None:
    """Refuses a device index that does not exist.

    Raises:
        RuntimeError: there is no such device.
    """
    if device is not None and device.type == device_type and device.index not in (None, 0):
        raise RuntimeError(
            f"device {device} does not exist: there is one virtual device, {device_type}:0. Which hardware stands "
            "behind it is the backend's choice: get_backend().set_default_device_ordinal(n)."
        )


def max_pending() -> int:
    """The bound on pending operations."""
    return settings.max_pending_nodes


@lru_cache(maxsize=4096)
def zeros_call(shape: Shape) -> Call:
    """The call that fills memory that was never written."""
    dense = Shape(shape.dtype, shape.sizes)
    return Call(torch.ops.aten.full.default, (shape.sizes, 0), (("dtype", shape.dtype),), (), (dense,))
