"""What stands behind a storage on the lazy device."""

from __future__ import annotations

from typing import Any

from torchport import metrics
from torchport.backend.data import BackendData
from torchport.ir.node import Value
from torchport.ir.shape import Shape

_CREATED = metrics.counter("CreateLazyTensor")
_DESTROYED = metrics.counter("DestroyLazyTensor")


class LazyTensor:
    """The contents of one storage on the lazy device: a value of the graph, pending or materialised.

    A ``torch.Tensor`` on the device is sizes, strides and an offset on a storage, as everywhere in PyTorch; the storage
    holds one of these. All views of a storage share it, so a write through one is seen by all.

    Attributes:
        shape: the storage's own layout, dense and at offset 0; ``value`` has these sizes.
        value: the contents; a device-data node's value when materialised; ``None`` when never written.
        views: the serial number of a trace, and the values there of views of the current contents, by layout; dropped
            at every write.
        host: a host copy of the current contents, kept while parts of them are being read; dropped at every write.
        previous: the contents on the device before they were written since the last launch; they come back when the
            computation of the new ones fails.
        device_index: the index of the virtual device.
        unique_id: numbers them in order of creation.
        trace: the serial number of the trace that lists it as written, or 0.
    """

    __slots__ = ("__weakref__", "device_index", "host", "previous", "shape", "trace", "unique_id", "value", "views")

    def __init__(self, shape: Shape, value: Value | None, unique_id: int, device_index: int = 0) -> None:
        self.shape = shape
        self.value = value
        self.views: tuple[Any, dict[Any, Any]] | None = None
        self.host: Any = None
        self.previous: Value | None = None
        self.device_index = device_index
        self.unique_id = unique_id
        _CREATED.value += 1
        self.trace = 0

    @property
    def data(self) -> BackendData | None:
        """The device's data when materialised (or in flight), else ``None``."""
        return self.value.node.data if self.value is not None else None

    def __del__(self) -> None:
        _DESTROYED.value += 1

    def __repr__(self) -> str:
        state = "unwritten" if self.value is None else "pending" if self.data is None else "materialised"
        return f"LazyTensor({self.unique_id}, {self.shape!r}, {state})"
