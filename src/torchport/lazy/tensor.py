"""Tensors on the lazy device: plain ``torch.Tensor`` objects whose storage has a size, an address, and no memory.

PyTorch makes such a tensor when it imports a DLPack capsule that names an extension device. So a tensor of ours has the
sizes, strides and storage offset that it has on any other device; views, ``detach``, ``.data`` and autograd's shallow
copies are PyTorch's own C++; and the storage, which all of them share, carries our :class:`LazyTensor` as an attribute
of its Python object, which PyTorch keeps alive with it.

The address is unique and not canonical on any processor we know: it serves programs that compare ``data_ptr()`` to find
tied weights, and a stray read of it faults instead of returning garbage. See docs/adr/0001-storages-without-memory.md.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from typing import Any
from weakref import ref

import torch

from torchport.backend import LazyTensor
from torchport.ir.node import Value
from torchport.ir.shape import Shape, contiguous_strides
from torchport.lazy import active

# DLManagedTensor, dlpack.h: data, device (type, id), ndim, dtype (code, bits, lanes), shape, strides, byte_offset,
# manager_ctx, deleter; then, ours, the sizes and strides that the two pointers lead to.
_HEAD = "<QiiiBBHQQQQQ"
_HEAD_BYTES = struct.calcsize(_HEAD)
_EXTENSION_DEVICE = 12  # kDLExtDev
_MAX_DIMS = 64
_DTYPE_CODES = {
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.uint16: (1, 16),
    torch.uint32: (1, 32),
    torch.uint64: (1, 64),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.complex32: (5, 32),
    torch.complex64: (5, 64),
    torch.complex128: (5, 128),
    torch.bool: (6, 8),
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e4m3fnuz: (11, 8),
    torch.float8_e5m2: (12, 8),
    torch.float8_e5m2fnuz: (13, 8),
    torch.float8_e8m0fnu: (14, 8),
}
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAME = b"dltensor"
_import_capsule = torch._C._from_dlpack
_FIRST_ADDRESS = 1 << 60


class _Template:
    """The capsule's memory for one shape; only the address differs from tensor to tensor. Used under the lock."""

    __slots__ = ("address", "memory", "step")

    def __init__(self, shape: Shape) -> None:
        codes = _DTYPE_CODES.get(shape.dtype)
        if codes is None:
            raise TypeError(f"{shape.dtype} cannot live on this device; convert the tensor to another dtype first")
        n = len(shape.sizes)
        if n > _MAX_DIMS:
            raise ValueError(f"a tensor of {n} dimensions: at most {_MAX_DIMS} can live on this device")
        # A window of no elements still has an address of its own.
        self.step = max(64, -(-shape.storage_numel * shape.dtype.itemsize // 64) * 64)
        self.memory = bytearray(_HEAD_BYTES + 16 * n)
        self.address = ctypes.addressof((ctypes.c_char * len(self.memory)).from_buffer(self.memory))
        sizes_at = self.address + _HEAD_BYTES
        head = (0, _EXTENSION_DEVICE, 0, n, *codes, 1, sizes_at, sizes_at + 8 * n, 0, 0, 0)
        struct.pack_into(f"{_HEAD}{2 * n}q", self.memory, 0, *head, *shape.sizes, *shape.strides)


_templates: dict[Shape, _Template] = {}
_TEMPLATES_LIMIT = 1 << 14
_next_address = _FIRST_ADDRESS
_pack_address = struct.Struct("<Q").pack_into
_ids = itertools.count()


def next_unique_id() -> int:
    """A number greater than that of every lazy tensor so far, and less than those to come."""
    return next(_ids)


def supported_dtypes() -> frozenset[torch.dtype]:
    """The dtypes that a tensor on the device may have."""
    return frozenset(_DTYPE_CODES)


def is_dense(shape: Shape) -> bool:
    """Whether the elements fill a storage without gaps or overlaps."""
    if 0 in shape.sizes:
        return True
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(shape.sizes, shape.strides, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def new_tensor(shape: Shape, value: Value | None) -> torch.Tensor:
    """A new tensor with a storage of its own. Call it with the trace's lock held.

    Args:
        shape: sizes and strides; where they leave gaps in the storage, its contents are flat.
        value: the contents, of ``shape.sizes``; ``None`` for memory that was never written.
    """
    global _next_address
    if active.host_mode is not None:
        return _new_host_tensor(active.host_mode, shape, value)
    template = _templates.get(shape)
    if template is None:
        if len(_templates) >= _TEMPLATES_LIMIT:
            _templates.clear()
        template = _templates[shape] = _Template(shape)
    _pack_address(template.memory, 0, _next_address)
    _next_address += template.step
    tensor: torch.Tensor = _import_capsule(_new_capsule(template.address, _NAME, None))
    lazy = LazyTensor(shape, value, next(_ids))
    if value is not None and value.node.data is None:
        lazy.trace = active.trace.serial
        active.trace.written.append(ref(lazy))
    tensor.untyped_storage()._torchport = lazy  # type: ignore[attr-defined]
    return tensor


def _new_host_tensor(mode: active.HostMode, shape: Shape, value: Value | None) -> torch.Tensor:
    """An ordinary CPU tensor whose memory is filled later."""
    tensor = torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype)
    lazy = LazyTensor(shape, value, next(_ids))
    if value is not None and value.node.data is None:
        lazy.trace = active.trace.serial
        active.trace.written.append(ref(lazy))
    mode.adopt(tensor.untyped_storage(), lazy)
    return tensor


def new_strided(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A new unwritten tensor of any strides."""
    shape = Shape(dtype, sizes, strides)
    tensor = new_tensor(shape, None)
    if not is_dense(shape):
        lazy_tensor_of(tensor).shape = Shape(dtype, (shape.storage_numel,))
    return tensor


def dense_shape(shape: Shape) -> Shape:
    """The shape itself where it is dense, else the row-major one of its sizes."""
    return shape if is_dense(shape) else Shape(shape.dtype, shape.sizes, contiguous_strides(shape.sizes))


def lazy_tensor_of(tensor: torch.Tensor) -> LazyTensor:
    """What stands behind the tensor's storage.

    Raises:
        TypeError: the tensor is not on the lazy device, or has no storage of ours.
    """
    try:
        return tensor.untyped_storage()._torchport  # type: ignore[attr-defined,no-any-return]
    except (AttributeError, NotImplementedError):
        pass
    what: Any = tensor.device if isinstance(tensor, torch.Tensor) else type(tensor).__name__
    raise TypeError(f"a tensor on the lazy device is needed, not one on {what}")
