"""Moving sparse tensors of any layout between the host and the device, by their indices and values."""

from __future__ import annotations

from typing import Any

import torch

from torchport.lazy import active

ROWS_FIRST = frozenset({torch.sparse_csr, torch.sparse_bsr})
COMPRESSED = ROWS_FIRST | {torch.sparse_csc, torch.sparse_bsc}


def _indices(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The compressed and the plain indices of a compressed tensor."""
    if x.layout in ROWS_FIRST:
        return x.crow_indices(), x.col_indices()
    return x.ccol_indices(), x.row_indices()


def to_host(x: Any) -> Any:
    """The same on the host: tensors of any layout, and devices, in lists too; anything else as it is."""
    if isinstance(x, torch.Tensor) and x.device.type == active.device_type:
        if x.layout in COMPRESSED:
            compressed, plain = _indices(x)
            parts = (compressed.cpu(), plain.cpu(), x.values().cpu())
            return torch.sparse_compressed_tensor(*parts, x.shape, layout=x.layout, check_invariants=False)
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
    """The same on the device: tensors of any layout, in lists too; anything else as it is."""
    if isinstance(x, torch.Tensor):
        device = torch.device(active.device_type, 0)
        if x.layout in COMPRESSED:
            parts = (t.to(device) for t in (*_indices(x), x.values()))
            return torch.ops.aten._sparse_compressed_tensor_unsafe.default(
                *parts, list(x.shape), dtype=x.dtype, layout=x.layout, device=device
            )
        if x.layout is not torch.sparse_coo:
            return x.to(device)
        return with_parts(x, x._indices().to(device), x._values().to(device))
    if isinstance(x, (list, tuple)):
        return type(x)(to_device(y) for y in x)
    return x


def with_parts(like: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A COO tensor of the device with these indices and values, and all else as ``like``."""
    made: torch.Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(
        like.sparse_dim(),
        like.dense_dim(),
        list(like.shape),
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=torch.device(active.device_type, 0),
        is_coalesced=like.is_coalesced(),
    )
    return made
