"""``torch.port``: what generic PyTorch code calls on a device's module."""

from __future__ import annotations

from typing import Any

import torch

from torchport.lazy import active, rng
from torchport.runtime.execution import wait_device_ops


def _index(device: Any) -> int:
    """The index of a device given as an index, a name, a ``torch.device`` or ``None``."""
    if device is None or (isinstance(device, int) and device in (0, -1)):
        return 0
    parsed = torch.device(active.device_type, device) if isinstance(device, int) else torch.device(device)
    active.check_device(parsed)
    return parsed.index or 0


class _DeviceContext:
    """``with torch.port.device(0):``; there is one device, so it only checks the index."""

    def __init__(self, device: Any) -> None:
        self.idx = _index(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


class DeviceModule:
    """The functions of ``torch.<device name>``."""

    _initialized = True  # torch.utils.checkpoint keeps the generator's state of initialised devices only
    _peak_bytes = 0
    device = _DeviceContext
    device_of = _DeviceContext

    def is_available(self) -> bool:
        """Whether the device can be used: always, since a backend is always installed."""
        return True

    def is_initialized(self) -> bool:
        """Whether it is set up: it needs no setting up."""
        return True

    def init(self) -> None:
        """Does nothing; other devices need it."""

    def _lazy_init(self) -> None:
        """Does nothing; other devices need it."""

    def device_count(self) -> int:
        """The number of virtual devices: one per process."""
        return 1

    def current_device(self) -> int:
        """The index of the current device: 0."""
        return 0

    def set_device(self, device: Any) -> None:
        """Checks that the device exists.

        Raises:
            RuntimeError: it does not.
        """
        _index(device)

    def get_device_name(self, device: Any = None) -> str:
        """The hardware behind the device, as its backend names it."""
        _index(device)
        return f"{type(active.backend()).__name__} on {active.backend_device()}"

    def get_device_capability(self, device: Any = None) -> dict[str, Any]:
        """What the device can do, for ``torch.accelerator.get_device_capability``."""
        _index(device)
        return {"supported_dtypes": set(self.get_amp_supported_dtype())}

    def synchronize(self, device: Any = None) -> None:
        """Waits until everything that was launched has ended."""
        _index(device)
        wait_device_ops()

    def manual_seed(self, seed: int) -> None:
        """Starts the device's generator again from ``seed``."""
        rng.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """The same; ``torch.manual_seed`` calls it."""
        rng.manual_seed(seed)

    def seed(self) -> int:
        """Starts the generator again from a seed of the operating system; returns it."""
        seed = torch.Generator().seed()
        rng.manual_seed(seed)
        return seed

    seed_all = seed

    def initial_seed(self) -> int:
        """The seed that was set last."""
        return rng.initial_seed()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """The generator's state, a byte tensor on the CPU."""
        _index(device)
        return rng.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        """Puts the generator into a state of :meth:`get_rng_state`."""
        _index(device)
        rng.set_rng_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """The states of all devices' generators."""
        return [rng.get_rng_state()]

    def set_rng_state_all(self, new_states: list[torch.Tensor]) -> None:
        """Puts all devices' generators into states of :meth:`get_rng_state_all`."""
        rng.set_rng_state(new_states[0])

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """The dtypes that ``torch.autocast`` may cast to."""
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Whether bfloat16 can be computed with: yes, wherever eager PyTorch can."""
        return True

    def _is_in_bad_fork(self) -> bool:
        """Whether this is a forked child in which the device cannot be used: it can."""
        return False

    def _lazy_call(self, function: Any, **kwargs: Any) -> None:
        function()

    # Memory: the device's tensors live in the backend's memory.

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes that live tensors hold now, as the backend counts them; 0 where it does not."""
        _index(device)
        held = int(active.backend().get_metrics().get("bytes_held", 0))
        self._peak_bytes = max(self._peak_bytes, held)
        return held

    def max_memory_allocated(self, device: Any = None) -> int:
        """The largest figure that :meth:`memory_allocated` has given, this time included."""
        return max(self._peak_bytes, self.memory_allocated(device))

    def memory_reserved(self, device: Any = None) -> int:
        """The same as :meth:`memory_allocated`: nothing is cached."""
        return self.memory_allocated(device)

    def max_memory_reserved(self, device: Any = None) -> int:
        """The same as :meth:`max_memory_allocated`: nothing is cached."""
        return self.max_memory_allocated(device)

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        """The figures above by the names that CUDA gives them."""
        return {
            "allocated_bytes.all.current": self.memory_allocated(device),
            "allocated_bytes.all.peak": self.max_memory_allocated(device),
        }

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Forgets the largest figure."""
        _index(device)
        self._peak_bytes = 0

    def empty_cache(self) -> None:
        """Does nothing: nothing is cached."""

    def current_stream(self, device: Any = None) -> torch.Stream:
        """The one stream: launches run in order."""
        return torch.Stream(device=torch.device(active.device_type, _index(device)))
