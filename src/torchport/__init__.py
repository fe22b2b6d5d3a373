"""torchport plugs any compiler into PyTorch, in Python: importing it registers the device ``"port"`` with torch."""

from __future__ import annotations

from torchport import metrics
from torchport.lazy.registration import register_device, register_kernels
from torchport.lazy.device_module import DeviceModule
from torchport.lazy.sync import sync, wait_device_ops
from torchport.lazy.switch import use
from torchport.lazy.rng import manual_seed
from torchport.lazy.eager import executed_fallback_ops
register_device(DeviceModule())
register_kernels()
from torchport.lazy.storage_support import install
install()
from torchport.lazy import torch_patches
torch_patches.install()
mark_step = sync
