"""Sets the device up: everything that happens when torchport is imported."""

from __future__ import annotations

import warnings

import torch

from torchport import metrics
from torchport.config import lock_setting
from torchport.lazy import active, storage_support, torch_patches
from torchport.lazy.device_module import DeviceModule
from torchport.lazy.registration import register_device, register_kernels

_done = False
available = False
"""Whether the device is registered; false when another package holds PyTorch's one slot for such devices."""


def set_up() -> None:
    """Registers the device with torch, once per process; warns when the slot is taken, and leaves the rest working."""
    global _done, available
    if _done:
        return
    _done = True
    holder = torch._C._get_privateuse1_backend_name()
    if holder != "privateuseone" or torch._C._dispatch_has_backend_fallback(torch._C.DispatchKey.PrivateUse1):
        warnings.warn(
            f"the device {active.device_type!r} is not available: PyTorch has one slot for devices of other packages, "
            f"and {holder!r} holds it. Import torchport first to use the lazy device; everything else works.",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    register_device(DeviceModule())
    register_kernels()
    storage_support.install()
    torch_patches.install()
    metrics.register_report_section(_report)
    metrics.register_figures(_figures)
    available = True
    lock_setting(
        "device_name",
        f"the device is registered with torch as {active.device_type!r}; set the environment "
        "variable TORCHPORT_DEVICE_NAME before torchport is imported",
    )


def _report() -> str:
    backend = active.active_backend()
    return "" if backend is None else backend.create_metric_report()


def _figures() -> dict[str, float]:
    backend = active.active_backend()
    return {} if backend is None else dict(backend.get_metrics())
