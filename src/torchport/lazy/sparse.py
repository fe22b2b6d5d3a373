"""Sparse COO tensors whose indices and values live on the device.

PyTorch's own kernels build and take apart such a tensor of any device, but are registered for its own devices only;
ours call those. The arithmetic runs on the CPU, as an eager fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.lazy import active, eager
from torchport.lazy.source import user_location
from torchport.lazy.sparse_transfer import to_device, to_host

_SPARSE_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
_STRUCTURE = (
    "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_indices",
    "_values",
    "_nnz",
    "_dimI",
    "_dimV",
    "indices",
    "values",
    "sparse_dim",
    "dense_dim",
    "is_coalesced",
    "_coalesced_",
)


def _structural(op: OpOverload) -> Callable[..., Any]:
    redispatch = op._handle.redispatch_boxed

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(_SPARSE_CPU, *args, **kwargs)

    return kernel


def _to_copy(self: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    device = kwargs.pop("device", None)
    kwargs.pop("layout", None)
    host = to_host(self) if self.device.type == active.device_type else self
    host = torch.ops.aten._to_copy.default(host, **kwargs)
    stays = device is None and self.device.type == active.device_type
    goes = stays or (device is not None and device.type == active.device_type)
    moved: torch.Tensor = to_device(host) if goes else host
    return moved


def _fallback(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    name = op._schema.name
    if name == "aten::_to_copy":
        return _to_copy(*args, **kwargs)
    eager.note_fallback(name, "sparse tensors are computed with on the CPU", user_location())
    host_args = [to_host(a) for a in args]
    result = op(*host_args, **{k: to_host(v) for k, v in kwargs.items()})
    for given, moved, argument in zip(args, host_args, op._schema.arguments, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            _write_back(given, moved)
            return given
    return to_device(result)


def _write_back(given: torch.Tensor, moved: torch.Tensor) -> None:
    if given.layout is torch.sparse_coo:
        new = to_device(moved)
        torch.ops.aten.copy_sparse_to_sparse_.default.redispatch(_SPARSE_CPU, given, new)
    else:
        given.copy_(moved)


def _on_host(overload: Callable[[str], Any], name: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _fallback(overload(name), *args, **kwargs)

    return kernel


def register_sparse(overload: Callable[[str], Any]) -> list[torch.library.Library]:
    """Registers kernels for sparse tensors of the device."""
    library = torch.library.Library("aten", "IMPL")
    for name in _STRUCTURE:
        library.m.impl(name, "SparsePrivateUse1", _structural(overload(name)), False)  # type: ignore[union-attr]
    # What has a kernel for sparse tensors on the CPU; composite kernels, made for dense ones, would come first else.
    for full_name in torch._C._dispatch_get_registrations_for_dispatch_key("SparseCPU"):
        name = full_name.removeprefix("aten::")
        if full_name.startswith("aten::") and name not in _STRUCTURE:
            library.m.impl(name, "SparsePrivateUse1", _on_host(overload, name), False)  # type: ignore[union-attr]
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(_fallback, "SparsePrivateUse1")
    return [library, rest]
