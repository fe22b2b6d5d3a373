"""Copying, saving and loading storages that have no memory.

PyTorch copies a storage by allocating another one on its device, and this device has no allocator; and it saves one by
copying it to the CPU. Both go through the methods below, which are PyTorch's for every other device.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.backend import Shape
from torchport.lazy import active
from torchport.lazy.reading import data_of, with_strides
from torchport.lazy.recording import upload
from torchport.lazy.tensor import new_tensor
from torchport.lazy.trace import LOCK

_originals: dict[str, Any] = {}


def _clone(self: Any) -> Any:
    """A storage of its own with the same contents."""
    lazy = getattr(self, "_torchport", None)
    if lazy is None:
        return _originals["clone"](self)
    with LOCK:
        return new_tensor(lazy.shape, lazy.value).untyped_storage()


def _copy_(self: Any, source: Any, non_blocking: Any = None) -> Any:
    """Copies the bytes of a storage, from the device, to it, or within it."""
    here = getattr(self, "_torchport", None)
    there = getattr(source, "_torchport", None)
    if here is None and there is None:
        return _originals["copy_"](self, source, non_blocking)
    host = _bytes(source)
    if here is None:
        return _originals["copy_"](self, host, non_blocking)
    if self.nbytes() != host.nbytes():
        raise RuntimeError(f"size does not match, self was {self.nbytes()} bytes but src was {host.nbytes()} bytes")
    with LOCK:
        shape = here.shape
        contents = torch.empty(0, dtype=shape.dtype).set_(host, 0, shape.sizes, shape.strides)
        active.trace.write(here, upload(contents, shape)[0])
    return self


def _write_file(self: Any, *args: Any) -> Any:
    """Writes the bytes to a file, for pickling; PyTorch's own copies them by their address."""
    return _originals["_write_file"](_bytes(self), *args)


def _set_from_file(self: Any, *args: Any) -> Any:
    """Reads the bytes from a file, for unpickling."""
    if getattr(self, "_torchport", None) is None:
        return _originals["_set_from_file"](self, *args)
    host = torch.UntypedStorage(self.nbytes())
    _originals["_set_from_file"](host, *args)
    return _copy_(self, host)


def _bytes(storage: Any) -> torch.UntypedStorage:
    """The contents of a storage as one on the CPU, of the same size."""
    lazy = getattr(storage, "_torchport", None)
    if lazy is None:
        return storage.cpu()  # type: ignore[no-any-return]
    host = with_strides(active.backend().make_tensor_from_computation_data(data_of(lazy)), lazy.shape)
    whole = host.untyped_storage()
    if whole.nbytes() != storage.nbytes():
        # A storage whose last bytes belong to no element (it was made through a dtype of another size).
        padded = torch.UntypedStorage(storage.nbytes())
        padded[: whole.nbytes()] = whole
        return padded
    return whole


def storage_from_host(storage: torch.UntypedStorage) -> Any:
    """A storage on the device with the bytes of one on the CPU."""
    contents = torch.empty(0, dtype=torch.uint8).set_(storage)
    with LOCK:
        value, shape = upload(contents, Shape(torch.uint8, tuple(contents.shape)))
        return new_tensor(shape, value).untyped_storage()


def _tag(storage: Any) -> str | None:
    return f"{active.device_type}:0" if getattr(storage, "_torchport", None) is not None else None


def _restore(storage: Any, location: str) -> Any:
    if location.partition(":")[0] != active.device_type:
        return None
    return storage_from_host(storage)


def _to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
    """The storage itself where it is on the device, else a copy that is."""
    target = torch.device(device)
    if target.type == active.device_type and getattr(self, "_torchport", None) is None:
        return storage_from_host(self.cpu())
    return _originals["to"](self, device=device, non_blocking=non_blocking)


def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
    """Refuses what would end the process: memory of this device that two processes share."""
    if torch.device(device).type == active.device_type:
        raise RuntimeError(
            f"a tensor on {active.device_type!r} cannot be shared between processes. In a DataLoader with workers, "
            "keep the data set on the CPU, and move each batch in the training loop."
        )
    return _originals["_new_shared"](size, device=device)


def install() -> None:
    """Teaches ``torch.UntypedStorage`` and ``torch.serialization`` about storages without memory."""
    cls = torch.UntypedStorage
    replacements = {
        "clone": _clone,
        "copy_": _copy_,
        "to": _to,
        "_write_file": _write_file,
        "_set_from_file": _set_from_file,
    }
    for name, ours in replacements.items():
        _originals[name] = getattr(cls, name)
        setattr(cls, name, ours)
    _originals["_new_shared"] = cls._new_shared
    cls._new_shared = classmethod(_new_shared)  # type: ignore[method-assign, assignment]
    # Before PyTorch's own entry for this device (priority 30 or less), which asks for an allocator.
    torch.serialization.register_package(5, _tag, _restore)
