"""Host tensors to device data and back."""

from __future__ import annotations

import torch

from torchport.backend.data import BackendData
from torchport.backend.device import BackendDevice
from torchport.backends.interpreter.layout import is_dense, shape_of
from torchport.backends.interpreter.memory import HELD
from torchport.errors import ExecutionError
from torchport.ir.shape import Shape


def to_device(tensor: torch.Tensor, shape: Shape, device: BackendDevice, place: torch.device) -> BackendData:
    """A copy of a host tensor, in the layout of ``shape`` where that is dense, else row-major.

    Raises:
        ValueError: the sizes differ, or the tensor is not strided or has no values.
    """
    if tensor.layout is not torch.strided or tensor.is_meta:
        kind = "meta tensor, which has no values" if tensor.is_meta else f"tensor of layout {tensor.layout}"
        raise ValueError(f"cannot copy a {kind} to {device}: copy a dense tensor, for example tensor.to_dense()")
    if tuple(tensor.shape) != shape.sizes:
        raise ValueError(f"cannot copy a tensor of sizes {tuple(tensor.shape)} to data of {shape!r}: sizes must agree")
    dense = is_dense(shape)
    if not dense or any(shape.symbolic):
        shape = Shape(shape.dtype, shape.sizes, shape.strides if dense else None)
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        copy = torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype, device=place).copy_(tensor)
    HELD.note(copy)
    return BackendData(device, shape, copy)


def to_host(data: BackendData, dtype: torch.dtype | None) -> torch.Tensor:
    """A host tensor of the caller's own, with the data's strides where those are dense.

    Raises:
        ExecutionError: the computation of the data failed.
        ValueError: the data has no value yet.
    """
    if data.error is not None:
        if isinstance(data.error, ExecutionError):
            raise data.error
        raise ExecutionError(f"{data.shape!r} on {data.device} was not computed: {data.error}") from data.error
    handle = data.handle
    if handle is None:
        raise ValueError(f"{data!r} has no value yet: wait for the computation that makes it, and read it then")
    if not isinstance(handle, torch.Tensor):
        return torch.tensor(handle, dtype=dtype or data.shape.dtype)
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        return handle.to("cpu", dtype or handle.dtype, copy=True)


def scalar_shape(scalar: bool | int | float | complex) -> Shape:
    """The shape of a Python number: that of ``torch.tensor(scalar)``."""
    return shape_of(torch.tensor(scalar))
