"""What a backend holds for a tensor."""

from __future__ import annotations

from typing import Any

from torchport.backend.device import BackendDevice
from torchport.ir.shape import Shape


class _Donated:
    def __repr__(self) -> str:
        return "DONATED"


DONATED = _Donated()
"""In ``BackendData.info`` for the duration of one execution: nobody else needs this value, its buffer may be reused."""


class BackendData:
    """The value of one tensor on a device: an opaque handle, or a placeholder that has none yet.

    Attributes:
        device: the concrete device.
        shape: scalar type, sizes and strides.
        handle: whatever the backend keeps (a buffer, an array, a tensor); ``None`` in a placeholder.
        info: a slot for whoever manages the data; the lazy device keeps the pending execution here.
        error: why there is no value and never will be; set by the runtime when a computation failed.

    A value, once assigned, never changes: several tensors may share one ``BackendData``.
    """

    __slots__ = ("__weakref__", "device", "error", "handle", "info", "shape")

    def __init__(self, device: BackendDevice, shape: Shape, handle: Any = None) -> None:
        self.device = device
        self.shape = shape
        self.handle = handle
        self.info: Any = None
        self.error: BaseException | None = None

    @property
    def has_value(self) -> bool:
        """Whether a handle was assigned."""
        return self.handle is not None

    def assign(self, other: BackendData) -> None:
        """Takes over the value of ``other``; the shape too, where an operator's output size was not known before.

        Raises:
            ValueError: ``other`` has no value, or another dtype.
        """
        if other.handle is None:
            raise ValueError(f"assign: the source of {self.shape!r} has no value")
        if other.shape.dtype is not self.shape.dtype:
            raise ValueError(f"assign: {other.shape!r} to data of {self.shape!r}")
        self.shape = other.shape
        self.handle = other.handle

    def __repr__(self) -> str:
        state = "value" if self.has_value else "failed" if self.error else "placeholder"
        return f"BackendData({self.device}, {self.shape!r}, {state})"
