"""Sparse tensors (COO, CSR, CSC, BSR, BSC) whose indices and values live on the device.

Most kernels that PyTorch has for them take such a tensor apart and call operators for dense tensors on its indices and
values: those serve any device, but are registered for PyTorch's own only. Ours call them, so what they do is deferred
like anything else. The kernels that read memory run on the CPU, as an eager fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.lazy import active, eager
from torchport.lazy.schema import undefaulted
from torchport.lazy.source import user_location
from torchport.lazy.sparse_transfer import to_device, to_host, with_parts

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Family:
    """The layouts that share one dispatch key.

    Attributes:
        key: the device's key for tensors of these layouts.
        cpu_key: the CPU's.
        reads_memory: operators whose kernel is for the CPU alone: in PyTorch's native_functions.yaml another function
            stands for CUDA, or the function asks for a kernel of its own by the device's name.
    """

    key: str
    cpu_key: str
    reads_memory: frozenset[str]


COO = Family(
    "SparsePrivateUse1",
    "SparseCPU",
    frozenset(
        {
            "_coalesce",
            "_pin_memory",
            "_sparse_log_softmax",
            "_sparse_log_softmax_backward_data",
            "_sparse_mask_projection",
            "_sparse_softmax",
            "_sparse_softmax_backward_data",
            "_sparse_sparse_matmul",
            "_sparse_sum_backward",
            "addmm",
            "addmm.out",
            "addmm_",
            "bmm",
            "bmm.out",
            "hspmm",
            "hspmm.out",
            "index_select",
            "is_pinned",
            "mul.out",
            "sspaddmm.out",
        }
    ),
)
COMPRESSED = Family(
    "SparseCsrPrivateUse1",
    "SparseCsrCPU",
    frozenset(
        {
            "_pin_memory",
            "_sparse_csr_prod.dim_dtype",
            "_sparse_csr_sum.dim_dtype",
            "_sparse_mm_reduce_impl",
            "_sparse_mm_reduce_impl_backward",
            "_to_sparse_bsc",
            "_to_sparse_bsr",
            "_to_sparse_csc",
            "_to_sparse_csr",
            "add.Tensor",
            "add.out",
            "add_.Tensor",
            "addmm",
            "addmm.out",
            "addmv.out",
            "is_pinned",
            "mm",
            "mm.out",
            "mul.Tensor",
            "mul.out",
            "mul_.Tensor",
            "sparse_mask",
            "sparse_sampled_addmm",
            "sparse_sampled_addmm.out",
            "triangular_solve.X",
        }
    ),
)

FROM_DENSE = ("_to_sparse", "_to_sparse.sparse_dim", *(f"_to_sparse_{x}" for x in ("csr", "csc", "bsr", "bsc")))
"""Operators that make a sparse tensor of a dense one, by calling other operators."""


def _keys(key: str) -> torch._C.DispatchKeySet:
    return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))


def generic_kernel(op: OpOverload, cpu_key: str) -> Callable[..., Any]:
    """PyTorch's own kernel for tensors of the CPU, which does no more than call other operators."""
    redispatch, keys = op._handle.redispatch_boxed, _keys(cpu_key)
    tensors = [str(a.type) == "Tensor" for a in op._schema.arguments]
    required = dict.fromkeys(undefaulted(op))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if any(t and not isinstance(a, torch.Tensor) for t, a in zip(tensors, args, strict=False)):
            args = tuple(_as_tensor(a, args[0]) if t else a for t, a in zip(tensors, args, strict=False))
        return redispatch(keys, *args, **{**required, **kwargs})

    return kernel


def _as_tensor(x: Any, like: torch.Tensor) -> Any:
    """A Python number where the schema wants a tensor, so that it has the same part in the promotion of dtypes."""
    if isinstance(x, torch.Tensor):
        return x
    precise = isinstance(x, float) and (like.dtype.is_floating_point or like.dtype.is_complex)
    # A tensor of no dimensions does not widen one that has some, within floats.
    return torch.scalar_tensor(x, dtype=torch.float64 if precise else torch.tensor(x).dtype, device=like.device)


def _to_copy(self: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    device = kwargs.pop("device", None)
    kwargs.pop("layout", None)
    host = to_host(self) if self.device.type == active.device_type else self
    host = aten._to_copy.default(host, **kwargs)
    stays = device is None and self.device.type == active.device_type
    goes = stays or (device is not None and device.type == active.device_type)
    moved: torch.Tensor = to_device(host) if goes else host
    return moved


def _on_host(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    name = op._schema.name
    if name == "aten::_to_copy":
        return _to_copy(*args, **kwargs)
    eager.note_fallback(name, "sparse tensors are computed with on the CPU", user_location())
    moves = _Moves()
    host_args = [moves.to_host(a) for a in args]
    host_kwargs = {k: moves.to_host(v) for k, v in {**dict.fromkeys(undefaulted(op)), **kwargs}.items()}
    with torch._C._AutoDispatchBelowAutograd():
        result = op(*host_args, **host_kwargs)
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs[argument.name]
            _write_back(given, moves.to_host(given))
    return moves.to_device(result)


class _Moves:
    """The tensors of a call on the host: one for each, as the call may compare them."""

    def __init__(self) -> None:
        self.moved: dict[int, tuple[Any, Any]] = {}

    def to_host(self, x: Any) -> Any:
        """The same on the host, tensor for tensor."""
        if isinstance(x, (list, tuple)):
            return type(x)(self.to_host(y) for y in x)
        if id(x) not in self.moved:
            moved = to_host(x)
            if moved is not x and isinstance(moved, torch.Tensor) and x.requires_grad:
                moved.requires_grad_()  # some kernels leave out what only a gradient needs
            self.moved[id(x)] = x, moved  # with the original, whose id stays taken
        return self.moved[id(x)][1]

    def to_device(self, result: Any) -> Any:
        """The result on the device; an argument that is returned is itself."""
        if isinstance(result, (list, tuple)):
            return type(result)(self.to_device(r) for r in result)
        for original, host in self.moved.values():
            if host is result:
                return original
        return to_device(result)


def _write_back(given: torch.Tensor, moved: torch.Tensor) -> None:
    if given.layout is torch.strided:
        if given.shape != moved.shape:
            given.resize_(moved.shape)
        given.copy_(moved.detach())
    else:
        new = to_device(moved.detach())
        given.resize_as_sparse_(new).copy_(new)


def _add_out(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1, out: torch.Tensor) -> torch.Tensor:
    """``aten::add.out``: a sparse gradient added to a dense parameter stays on the device."""
    if self.layout is not torch.strided or not other.sparse_dim() or self.shape != other.shape:
        added: torch.Tensor = _on_host(aten.add.out, self, other, alpha=alpha, out=out)
        return added
    dense = self.to(torch.result_type(self, other))
    values = other._values().to(dense.dtype)
    if alpha != 1:
        values = values * alpha
    summed = dense.index_put(tuple(other._indices()), values, accumulate=True)
    if out.shape != summed.shape:
        out.resize_(summed.shape)
    return out.copy_(summed)


def _sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``aten::sparse_mask``: the gradient of ``to_sparse()``'s result, read off a dense one, stays on the device."""
    if self.layout is not torch.strided or not mask.sparse_dim() or self.shape != mask.shape:
        masked: torch.Tensor = _on_host(aten.sparse_mask.default, self, mask)
        return masked
    indices = mask._indices()
    return with_parts(mask, indices.clone(), self[tuple(indices)])


_OURS: dict[tuple[str, str], Callable[..., Any]] = {
    ("add.out", COO.key): _add_out,
    ("sparse_mask", COO.key): _sparse_mask,
}


def _deferred(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """A kernel that is made when it is first called: there are 300, and an import should not look at their schemas."""
    made: list[Callable[..., Any]] = []

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not made:
            made.append(make())
        return made[0](*args, **kwargs)

    return kernel


def _kernel(overload: Callable[[str], Any], name: str, family: Family) -> Callable[..., Any]:
    ours = _OURS.get((name, family.key))
    if ours is not None:
        return ours
    if name in family.reads_memory:
        return _deferred(lambda: partial(_on_host, overload(name)))
    return _deferred(lambda: generic_kernel(overload(name), family.cpu_key))


def register_sparse(overload: Callable[[str], Any]) -> list[torch.library.Library]:
    """Registers kernels for sparse tensors of the device."""
    dense = torch.library.Library("aten", "IMPL")
    for name in FROM_DENSE:
        dense.m.impl(name, "PrivateUse1", generic_kernel(overload(name), "CPU"), False)  # type: ignore[union-attr]
    libraries = [dense]
    for family in (COO, COMPRESSED):
        library = torch.library.Library("aten", "IMPL")
        # All that have one on the CPU; composite kernels, made for dense tensors, would come first else.
        for full_name in torch._C._dispatch_get_registrations_for_dispatch_key(family.cpu_key):
            name = full_name.removeprefix("aten::")
            if full_name.startswith("aten::"):
                library.m.impl(name, family.key, _kernel(overload, name, family), False)  # type: ignore[union-attr]
        rest = torch.library.Library("_", "IMPL")
        rest.fallback(_on_host, family.key)
        libraries += [library, rest]
    return libraries
