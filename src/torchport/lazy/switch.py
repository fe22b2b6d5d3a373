"""Changing the active backend while tensors are alive."""

from __future__ import annotations

import gc
import os

import torch

from torchport.backend import (
    BackendData,
    BackendImplInterface,
    LazyTensor,
    SyncCause,
    Value,
    activate,
    default_registry,
)
from torchport.backend.delegates import is_delegate
from torchport.backend.registration import LOWERS_ONLY
from torchport.config import settings
from torchport.errors import BackendNotAvailableError
from torchport.lazy import active, rng
from torchport.lazy.source import user_location
from torchport.lazy.sync import launch
from torchport.lazy.trace import LOCK
from torchport.runtime.events import EventKind, record_event
from torchport.runtime.execution import executor


def use(name: str) -> None:
    """Makes a backend the active one.

    What is pending is launched and finished on the old one first, and the contents of all live tensors are moved, so a
    program may switch at any time.

    Raises:
        UnknownBackendError: there is no backend of that name; the message lists those that are installed.
        BackendNotAvailableError: it cannot be used here; the message says why.
        ExecutionError: pending work failed.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"use() takes the name of a backend, not {name!r}; register an object first: "
            'torchport.register_backend("mine", Mine), then torchport.use("mine")'
        )
    if is_delegate(name):
        raise BackendNotAvailableError(name, LOWERS_ONLY)
    with LOCK:
        activate(name, _finish_pending, _migrate)
        active.forget()
        rng.seed_backend(active.backend())
    record_event(EventKind.BACKEND, f"{name} became the active backend", user_location())


def _finish_pending() -> None:
    if active.trace.operations:
        launch(SyncCause.BARRIER, user_location())
    executor.wait_all()


def _before_fork() -> None:
    _finish_pending()
    LOCK.acquire()


# A child process finds values, not a trace that two processes would launch; and a lock that no lost thread holds.
os.register_at_fork(before=_before_fork, after_in_parent=LOCK.release, after_in_child=LOCK.release)


def _activate_default() -> None:
    use(settings.backend)


active.activate_default = _activate_default
active.flush = _finish_pending
default_registry().add_listener(active.forget)


def _migrate(old: BackendImplInterface, new: BackendImplInterface) -> None:
    device = new.get_backend_device(torch.device(settings.device_name, 0))
    moved: dict[int, BackendData] = {}
    tensors: list[tuple[LazyTensor, BackendData]] = []
    # Nothing lists the live tensors, so that making one costs no registration; a switch is rare and may search.
    for tensor in [o for o in gc.get_objects() if type(o) is LazyTensor]:
        data = tensor.data
        if data is None or data.error is not None:
            continue
        tensors.append((tensor, data))
        if id(data) not in moved:
            host = old.make_tensor_from_computation_data(data)
            moved[id(data)] = new.make_computation_data_from_tensor(host, data.shape, device)
    # Only when all are there: an upload that fails leaves everything on the old backend.
    leaves = {key: Value(new.get_ir_builder().make_device_data(data)) for key, data in moved.items()}
    for tensor, data in tensors:
        tensor.value = leaves[id(data)]
        tensor.views = None
