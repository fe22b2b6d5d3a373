"""Registers the device with PyTorch: the one place that talks to its registration interfaces.

Three things reach a kernel of ours:

- operators that have a composite kernel (structured ones, factories) need a registration each, or the composite would
  run on our tensors; there are about 700, and a registration costs 20 µs, so each is a thin closure that looks at the
  schema when it is first called;
- everything else arrives at the boxed fallback, which costs nothing at import;
- view operators are left to PyTorch: they are metadata.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.lazy import active
from torchport.lazy.attention import scaled_dot_product_attention
from torchport.lazy.autocast import register_autocast
from torchport.lazy.embedding_bag import sparse_where_asked
from torchport.lazy.kernels import make_kernel
from torchport.lazy.linear import as_eager_folds, differentiable_linear_backward, linear_backward
from torchport.lazy.padded_encoder import PADDED_KERNELS
from torchport.lazy.recurrent import RECURRENT_KERNELS
from torchport.lazy.sparse import register_sparse
from torchport.lazy.specials import METADATA_OPERATORS, SPECIAL_KERNELS, metadata_kernel
from torchport.lazy.widened import WIDENED_KERNELS

# Composite kernels that are right for us as they are: views, wrappers around other operators, queries.
_LEFT_TO_PYTORCH = frozenset(
    [
        "alias",
        "as_strided_",
        "detach",
        "detach_",
        "t",
        "t_",
        "transpose.int",
        "transpose_",
        "permute",
        "expand",
        "select.int",
        "slice.Tensor",
        "diagonal",
        "unbind.int",
        "split.Tensor",
        "split_with_sizes",
        "squeeze",
        "squeeze.dim",
        "squeeze.dims",
        "squeeze_",
        "squeeze_.dim",
        "squeeze_.dims",
        "unsqueeze",
        "unsqueeze_",
        "view.dtype",
        "_conj",
        "_neg_view",
        "_fw_primal",
        "_make_dual",
        "_unsafe_view",
        "_lazy_clone",
        "lift",
        "lift_fresh",
        "_reshape_copy",
        "indices",
        "values",
        "crow_indices",
        "col_indices",
        "ccol_indices",
        "row_indices",
        "dense_dim",
        "sparse_dim",
        "is_coalesced",
        "is_same_size",
        "is_pinned",
        "_has_same_storage_numel",
        "_pin_memory",
        "_print",
        "_resize_output",
        "resize_as_",
        "_test_autograd_multiple_dispatch.fullcoverage",
        "_test_autograd_multiple_dispatch_view",
        "empty_like",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_zeros",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "randint_like.low_dtype",
        "randint_like.Tensor",
        "copy",
        "set",
        "set.source_Storage",
        "set.source_Tensor",
        "set.source_Storage_storage_offset",
        "resize",
        "resize_as",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
        "_functional_sym_constrain_range",
        "_functional_sym_constrain_range_for_size",
        "_assert_tensor_metadata",
        "_assert_scalar",
        "_functional_assert_scalar",
        "_linalg_check_errors",
        "_sparse_addmm",
        "_sparse_sum.dim",
        "sparse_compressed_tensor.comp_plain_value",
        "sparse_compressed_tensor.comp_plain_value_size",
        "sparse_coo_tensor.size",
        "copy_sparse_to_sparse",
        "sparse_resize",
        "sparse_resize_and_clear",
        "resize_as_sparse",
        "_coalesced",
        "_nested_tensor_from_tensor_list",
        "allclose",
        "_is_all_true",
        "_is_any_true",
        "_new_zeros_with_same_feature_meta",
        "_pack_padded_sequence",
        "unsafe_split.Tensor",
        "unsafe_split_with_sizes",
    ]
)

_EXPLICIT_KERNELS = {
    **SPECIAL_KERNELS,
    **RECURRENT_KERNELS,
    **PADDED_KERNELS,
    **WIDENED_KERNELS,
    "linear_backward": linear_backward,
}

# Composite operators that are traced whole, because a gradient formula for them as a whole exists, with what may
# take them apart all the same.
WHOLE_OPERATORS = {"linear": as_eager_folds}

# Operators that are traced, but for calls that no graph can hold.
PARTLY_TRACED = {"_embedding_bag_backward": sparse_where_asked}

# Operators without a gradient formula that PyTorch takes apart on other devices than its own, in another rounding.
_KERNEL_ON_CPU = ("mish_backward", "native_channel_shuffle")

# Their composite kernels call helpers that have no functional form, while they themselves have one.
_OVER_A_HELPER = ("cummax.out", "cummin.out")

_kernels: dict[OpOverload, Callable[..., Any]] = {}
_libraries: list[torch.library.Library] = []


def overload(name: str) -> OpOverload:
    """The ATen overload of a dispatcher name such as ``add.Tensor``."""
    packet, _, overload_name = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload_name or "default")  # type: ignore[no-any-return]


def _kernel_of(op: OpOverload) -> Callable[..., Any]:
    kernel = _kernels.get(op)
    if kernel is None:
        kernel = _kernels[op] = make_kernel(op)
    return kernel


def _deferred_kernel(name: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] | None = None

    def first_call(*args: Any, **kwargs: Any) -> Any:
        nonlocal kernel
        if kernel is None:
            kernel = _kernel_of(overload(name))
        return kernel(*args, **kwargs)

    return first_call


def _fallback(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return _kernel_of(op)(*args, **kwargs)


def composite_operators() -> list[str]:
    """The operators whose composite kernels we replace, by dispatcher name without ``aten::``."""
    registrations = torch._C._dispatch_get_registrations_for_dispatch_key
    names = set(registrations("CompositeExplicitAutogradNonFunctional"))
    names.update(n for n in registrations("CompositeExplicitAutograd") if not n.endswith("out"))
    ours = {n.removeprefix("aten::") for n in names if n.startswith("aten::")}
    views = {n for n in ours if n.partition(".")[0].endswith("_copy") and n.partition(".")[0] != "index_copy"}
    return sorted(
        ours - views - _LEFT_TO_PYTORCH - set(_EXPLICIT_KERNELS) - set(PARTLY_TRACED) - set(METADATA_OPERATORS)
    )


_whole: list[torch.library.Library] = []
_differentiable: list[torch.library.Library] = []


def trace_whole(wanted: bool) -> None:
    """Registers the kernels of :data:`WHOLE_OPERATORS`, or leaves them to PyTorch, which takes them apart."""
    if wanted and not _whole:
        library = torch.library.Library("aten", "IMPL")
        for name, unless in WHOLE_OPERATORS.items():
            library.m.impl(name, "PrivateUse1", unless(_deferred_kernel(name)), False)  # type: ignore[union-attr]
        _whole.append(library)
    elif not wanted and _whole:
        _whole.pop()._destroy()


def differentiate_twice() -> None:
    """Makes the gradients of whole operators differentiable; asked for by a backward pass that makes a graph."""
    if not _differentiable:
        library = torch.library.Library("aten", "IMPL")
        _differentiable.append(library)
        library.impl("linear_backward", differentiable_linear_backward, "AutogradPrivateUse1")


def register_kernels() -> None:
    """Registers all kernels for the device's dispatch key."""
    library = torch.library.Library("aten", "IMPL")
    implement = library.m.impl  # type: ignore[union-attr]  # Library.impl costs as much again in bookkeeping
    for name in (*composite_operators(), *_KERNEL_ON_CPU, *_OVER_A_HELPER):
        implement(name, "PrivateUse1", _deferred_kernel(name), False)
    for name, kernel in _EXPLICIT_KERNELS.items():
        implement(name, "PrivateUse1", kernel, False)
    for name, unless in PARTLY_TRACED.items():
        implement(name, "PrivateUse1", unless(_deferred_kernel(name)), False)
    trace_whole(True)
    for key in ("AutogradPrivateUse1", "PrivateUse1"):  # composite: below autograd only where that is off
        implement("scaled_dot_product_attention", key, scaled_dot_product_attention, False)
    for name in METADATA_OPERATORS:
        implement(name, "PrivateUse1", metadata_kernel(overload(name)), False)
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(_fallback, "PrivateUse1")
    _libraries.extend((library, fallback, *register_autocast(overload), *register_sparse(overload)))


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


_interrupted = threading.local()


def _answers() -> Iterator[Any]:
    """The guard's only answer, for ever. PyTorch asks for it four times per node of the autograd graph.

    It also asks while an exception of a hook unwinds the C++ engine, with Python's error still set. No call of Python
    can succeed then, and where PyTorch asks a failed one ends the process. So the error is taken away and kept:
    :func:`take_interrupting_error` gives it back when the engine has ended.

    An answer runs no bytecode at which Python looks for signals (``yield from`` an iterator in C has none), because an
    exception of Ctrl-C would end the process in the same way.
    """
    answer = {None: torch._C._autograd.DeviceType.PrivateUse1}
    while True:
        try:
            yield from map(answer.__getitem__, itertools.repeat(None))  # each is a call, and fails when an error is set
        except SystemError as error:
            _interrupted.error = error.__cause__


def take_interrupting_error() -> BaseException | None:
    """The exception that was kept from this thread's backward pass, once."""
    error: BaseException | None = _interrupted.__dict__.pop("error", None)
    return error


class _Guard(torch._C._acc.DeviceGuard):
    type_ = _answers().__next__


def register_device(module: Any) -> None:
    """Gives the device slot its name, its module and its hooks.

    Raises:
        RuntimeError: another package holds the slot.
    """
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(
        active.device_type, module, _Hooks(), _Guard()
    )
