"""``torch.port``: what generic PyTorch code calls on a device's module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torchport.errors import UnsupportedOperationError
from torchport.lazy import active, rng
from torchport.lazy.tensor import supported_dtypes
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


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What is known of the hardware behind the device.

    Attributes:
        name: as its backend names it.
        total_memory: bytes; 0 where the backend does not tell.
    """

    name: str
    total_memory: int


class DeviceModule:
    """The functions of ``torch.<device name>``."""

    _initialized = True  # torch.utils.checkpoint keeps the generator's state of initialised devices only
    _peak_bytes = 0
    device = _DeviceContext
    device_of = _DeviceContext
    Stream = torch.Stream
    Event = torch.Event

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
        """What the device can do, for ``torch.accelerator.get_device_capability``: the dtypes that can live there."""
        _index(device)
        return {"supported_dtypes": set(supported_dtypes())}

    def get_device_properties(self, device: Any = None) -> DeviceProperties:
        """What is known of the hardware behind the device."""
        total = active.backend().get_metrics().get("bytes_total", 0)
        return DeviceProperties(self.get_device_name(device), int(total))

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
        held = self.memory_allocated(device)
        return {
            f"{kind}_bytes.all.{figure}": value
            for kind in ("allocated", "reserved")
            for figure, value in (("current", held), ("peak", self._peak_bytes))
        }

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """The bytes of the device's memory that are free, and all of them.

        Raises:
            UnsupportedOperationError: the active backend does not tell.
        """
        _index(device)
        figures = active.backend().get_metrics()
        if not {"bytes_free", "bytes_total"} <= figures.keys():
            raise UnsupportedOperationError(
                f"the backend {type(active.backend()).__name__} does not tell how much memory there is "
                "(bytes_free and bytes_total in get_metrics())"
            )
        return int(figures["bytes_free"]), int(figures["bytes_total"])

    get_memory_info = mem_get_info  # its name in torch.accelerator

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Forgets the largest figure."""
        _index(device)
        self._peak_bytes = 0

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        """Does nothing: no figure is accumulated."""
        _index(device)

    def empty_cache(self) -> None:
        """Does nothing: nothing is cached."""

    def empty_host_cache(self) -> None:
        """Does nothing: no host memory is set aside."""

    # Streams: there is one, since launches run in order; what PyTorch's own objects say of others is not listened to.

    def current_stream(self, device: Any = None) -> torch.Stream:
        """The one stream: launches run in order."""
        return torch.Stream(device=torch.device(active.device_type, _index(device)))

    default_stream = current_stream

    def set_stream(self, stream: torch.Stream) -> None:
        """Does nothing: there is one stream."""

    @contextmanager
    def stream(self, stream: torch.Stream | None) -> Iterator[None]:
        """``with torch.port.stream(s):``; there is one, so nothing changes."""
        yield
