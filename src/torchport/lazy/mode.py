"""Lazy tensors on concrete devices: ``with torchport.lazy_mode():`` defers operations on ordinary CPU tensors.

Inside, a tensor is on the device that it says: the mapping from virtual to concrete is the identity. Its memory is
there, and is filled when a value is read or when the mode ends. The storage carries a ``LazyTensor`` meanwhile, so the
kernels of the lazy device serve here too.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from torchport.backend import LazyTensor, Shape, SyncCause
from torchport.errors import ExecutionError
from torchport.lazy import active
from torchport.lazy.kernels import make_kernel
from torchport.lazy.reading import data_of, view_of_storage, with_strides
from torchport.lazy.recording import upload
from torchport.lazy.source import user_location
from torchport.lazy.sync import launch
from torchport.lazy.tensor import is_dense
from torchport.lazy.trace import LOCK

_READS_MEMORY = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.tolist,
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
        torch.Tensor.storage,
        torch.Tensor.__dlpack__,
        torch.Tensor.__repr__,
        torch.Tensor.__format__,
        torch.Tensor.__reduce_ex__,
        torch.Tensor.__deepcopy__,
    }
)
_kernels: dict[OpOverload, Callable[..., Any] | None] = {}


def _is_deferrable(func: OpOverload) -> bool:
    """Views are metadata, and random numbers come from the CPU's own generator at once, in the order of the program."""
    if torch.Tag.nondeterministic_seeded in func.tags or func.namespace != "aten":
        return False
    if func._schema.name in ("aten::empty", "aten::empty_strided", "aten::set_", "aten::resize_", "aten::_to_copy"):
        return func._schema.name == "aten::_to_copy"
    aliases = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
    if any(not a.is_write for a in aliases):
        return False
    return torch.Tag.inplace_view not in func.tags


def _kernel_of(func: OpOverload) -> Callable[..., Any] | None:
    if func not in _kernels:
        _kernels[func] = make_kernel(func) if _is_deferrable(func) else None
    return _kernels[func]


class _HostStorages:
    """The storages of CPU tensors whose contents are deferred."""

    def __init__(self) -> None:
        self._known: list[tuple[weakref.ref[Any], weakref.ref[LazyTensor]]] = []

    def adopt(self, storage: Any, lazy: LazyTensor) -> None:
        """Attaches a lazy tensor to a storage, until it is materialised."""
        storage._torchport = lazy
        self._known.append((weakref.ref(storage), weakref.ref(lazy)))

    def attach(self, tensor: torch.Tensor) -> None:
        """Gives the storage of a CPU tensor a lazy tensor with its present contents."""
        storage = tensor.untyped_storage()
        if hasattr(storage, "_torchport"):
            return
        shape = Shape(tensor.dtype, tuple(tensor.shape), tensor.stride())
        if not is_dense(shape) or tensor.storage_offset() or shape.nbytes != storage.nbytes():
            shape = Shape(tensor.dtype, (storage.nbytes() // tensor.dtype.itemsize,))
        contents = view_of_storage(tensor.detach(), (shape.sizes, shape.strides, 0, shape.dtype))
        value, _ = upload(contents, shape)
        lazy = LazyTensor(shape, value, -1)
        lazy.host = contents
        self.adopt(storage, lazy)

    def materialise(self, storage: Any) -> None:
        """Fills the memory of a storage, which is an ordinary one from then on.

        Raises:
            ExecutionError: the computation failed; the memory keeps what was in it.
        """
        lazy: LazyTensor | None = getattr(storage, "_torchport", None)
        if lazy is None:
            return
        del storage._torchport
        if lazy.host is None and lazy.value is not None:
            data = data_of(lazy)
            host = with_strides(active.backend().make_tensor_from_computation_data(data), lazy.shape)
            layout = (lazy.shape.sizes, lazy.shape.strides, 0, lazy.shape.dtype)
            memory = torch.empty(0, dtype=lazy.shape.dtype).set_(storage, 0, layout[0], layout[1])
            memory.copy_(host)

    def materialise_all(self) -> list[ExecutionError]:
        """Fills the memory of all of them; returns the errors of those that failed."""
        errors = []
        launch(SyncCause.BARRIER, user_location(), soon_read=True)
        for storage_reference, _ in self._known:
            storage = storage_reference()
            if storage is not None:
                try:
                    self.materialise(storage)
                except ExecutionError as error:
                    errors.append(error)
        self._known.clear()
        return errors


class _DeferOnHost(TorchDispatchMode):
    def __init__(self, storages: _HostStorages) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages = storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        with LOCK:
            kernel = _kernel_of(func)
            if kernel is not None and self._all_on_host(tensors, kwargs):
                for tensor in tensors:
                    self._storages.attach(tensor)
                before, active.host_mode = active.host_mode, self._storages
                try:
                    return kernel(*args, **kwargs)
                except active.NotDeferred:
                    pass
                finally:
                    active.host_mode = before
            if not _is_view(func):
                for tensor in tensors:
                    if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                        self._storages.materialise(tensor.untyped_storage())
            return func(*args, **kwargs)

    @staticmethod
    def _all_on_host(tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> bool:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return False
        if kwargs.get("layout") not in (None, torch.strided):
            return False
        return all(
            t.device.type == "cpu" and t.layout is torch.strided and not t.is_conj() and not t.is_neg() for t in tensors
        )


def _is_view(func: OpOverload) -> bool:
    return any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)


class _ReadMemory(TorchFunctionMode):
    """Materialises what is read past the dispatcher: ``.numpy()``, ``.tolist()``, ``print``, …"""

    def __init__(self, storages: _HostStorages) -> None:
        super().__init__()
        self._storages = storages

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS_MEMORY:
            for tensor in args:
                if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.layout is torch.strided:
                    with torch._C.DisableTorchFunction(), _disable_current_modes(), LOCK:
                        self._storages.materialise(tensor.untyped_storage())
        return func(*args, **(kwargs or {}))


_outermost: _HostStorages | None = None


@contextlib.contextmanager
def lazy_mode() -> Iterator[None]:
    """Defers operations on ordinary CPU tensors inside the block; they have their values when it ends, or when read.

    Modes nest: values are there when the outermost ends. An exception that leaves the block still gives every tensor
    the value that the operations before it compute. Random numbers are drawn at once, from the CPU's generator. Memory
    that is shared with numpy must not be written through numpy inside the block.

    Raises:
        ExecutionError: a deferred operation failed; all others have their values.

    Example:
        >>> import torch, torchport
        >>> x = torch.arange(3.0)
        >>> with torchport.lazy_mode():
        ...     y = (x * 2).add_(1)
        >>> y
        tensor([1., 3., 5.])
    """
    global _outermost
    if _outermost is not None:
        yield
        return
    storages = _outermost = _HostStorages()
    failed = True
    try:
        with _DeferOnHost(storages), _ReadMemory(storages):
            yield
        failed = False
    finally:
        _outermost = None
        with LOCK:
            errors = storages.materialise_all()
        if errors and not failed:
            raise errors[0]
