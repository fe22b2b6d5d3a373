"""Moving sparse COO tensors between the host and the device, by their indices and values."""

from __future__ import annotations

from typing import Any

import torch

from torchport.lazy import active


def to_host(x: Any) -> Any:
    """The same on the host: tensors of either layout, and devices, in lists too; anything else as it is."""
    if isinstance(x, torch.Tensor) and x.device.type == active.device_type:
        if x.layout is not torch.sparse_coo:
            return x.cpu()
        moved = torch.sparse_coo_tensor(x._indices().cpu(), x._values().cpu(), x.shape, check_invariants=False)
        return moved._coalesced_(x.is_coalesced())
    if isinstance(x, (list, tuple)):
        return type(x)(to_host(y) for y in x)
    if isinstance(x, torch.device) and x.type == active.device_type:
        return torch.device("cpu")
    return x


def to_device(x: Any) -> Any:
    """The same on the device: tensors of either layout, in lists too; anything else as it is."""
    if isinstance(x, torch.Tensor):
        if x.layout is not torch.sparse_coo:
            return x.to(active.device_type)
        return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(
            x.sparse_dim(),
            x.dense_dim(),
            list(x.shape),
            x._indices().to(active.device_type),
            x._values().to(active.device_type),
            dtype=x.dtype,
            layout=torch.sparse_coo,
            device=torch.device(active.device_type, 0),
            is_coalesced=x.is_coalesced(),
        )
    if isinstance(x, (list, tuple)):
        return type(x)(to_device(y) for y in x)
    return x
