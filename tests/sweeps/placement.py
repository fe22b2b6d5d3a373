"""Puts a sample's tensors on a device: the same values in the same layout, sharing storages where the originals do."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


class Placement:
    """Copies tensors to one device; arguments that share a storage still share one."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._originals: list[torch.UntypedStorage] = []  # kept, so that no later one has the address of an earlier

    def place(self, x: Any) -> Any:
        """The pytree with its tensors copied, and with this device wherever it names the CPU."""
        return pytree.tree_map(self._leaf, x)

    def _leaf(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self._tensor(x)
        if isinstance(x, torch.device) and x.type == "cpu":
            return self.device
        # No operator takes this text for anything but a device.
        return str(self.device) if isinstance(x, str) and x == "cpu" else x

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach()
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            placed = plain.to(self.device, copy=True)
        else:
            placed = self._strided(plain)
        return placed.requires_grad_(tensor.requires_grad)

    def _strided(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.dtype)
        if key not in self._storages:
            self._originals.append(storage)
            if _is_whole(tensor):
                # In its own shape, as tensors usually are; anything that shares the storage views it.
                bits = tensor.conj() if tensor.is_conj() else tensor
                bits = torch._neg_view(bits) if bits.is_neg() else bits
                self._storages[key] = bits.to(self.device, copy=True)
            else:
                flat = torch.empty(0, dtype=tensor.dtype).set_(storage)  # type: ignore[call-overload]  # no stub for it
                self._storages[key] = flat.to(self.device, copy=True)
        placed = self._storages[key]
        if not _is_whole(tensor) or placed.shape != tensor.shape or placed.stride() != tensor.stride():
            placed = placed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        else:
            placed = placed.detach()
        if tensor.is_conj():
            placed = placed.conj()
        return torch._neg_view(placed) if tensor.is_neg() else placed


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether the tensor is all of its storage, once each, so that a plain copy keeps its strides."""
    if tensor.storage_offset() or tensor.numel() * tensor.itemsize != tensor.untyped_storage().nbytes():
        return False
    # Of a tensor with gaps or overlaps, empty_like has other strides.
    return torch.empty_like(tensor).stride() == tensor.stride()
