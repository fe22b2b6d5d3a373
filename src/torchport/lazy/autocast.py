"""``torch.autocast`` on the device: the same operators and the same policies as on the CPU.

PyTorch registers autocast kernels for its own devices in C++ macros; which operators they cover can be asked, so the
list follows the installed version.

Source: aten/src/ATen/autocast_mode.cpp, ``TORCH_LIBRARY_IMPL(aten, AutocastCPU, m)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch

from torchport.lazy import active

_LOWER_PRECISION = frozenset(
    [
        "_addmm_activation",
        "_convolution.deprecated",
        "_native_multi_head_attention",
        "addbmm",
        "addmm",
        "baddbmm",
        "bmm",
        "conv1d",
        "conv1d.padding",
        "conv2d",
        "conv2d.padding",
        "conv3d",
        "conv3d.padding",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d.input",
        "conv_transpose3d.input",
        "linalg_vecdot",
        "linear",
        "matmul",
        "mkldnn_rnn_layer",
        "mm",
        "prelu",
        "scaled_dot_product_attention",
    ]
)
_PROMOTE = frozenset({"stack", "cat", "index_copy"})
_KEY = "AutocastPrivateUse1"
_LSTM = "lstm.input"
"""On the CPU it becomes one of the operators above, ``mkldnn_rnn_layer``; here its cells are traced, so it is cast as a
whole. With projections the CPU takes it apart before it casts, and so do we."""


def _map(args: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(args, torch.Tensor):
        return convert(args) if _is_eligible(args) else args
    if isinstance(args, (list, tuple)):
        return type(args)(_map(a, convert) for a in args)
    return args


def _is_eligible(tensor: torch.Tensor) -> bool:
    """Only floating-point tensors of this device, and never float64, take part in autocasting."""
    return tensor.device.type == active.device_type and tensor.is_floating_point() and tensor.dtype != torch.float64


_casts: dict[int, tuple[ref[torch.Tensor], torch.Tensor]] = {}
"""Leaves and what they were cast to in this region, by the leaf's id."""


def forget_casts() -> None:
    """Lets go of the casts of weights; PyTorch does so with its own when the outermost region is left."""
    _casts.clear()


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in another dtype. A weight is cast once per region, so its gradients add up in the lower precision.

    The first use may be one without a graph; the others need theirs, so the cast always has it.

    Source: aten/src/ATen/autocast_mode.cpp, ``cached_cast``.
    """
    if (
        tensor.dtype is not torch.float32
        or dtype is not torch.get_autocast_dtype(active.device_type)
        or not (tensor.requires_grad and tensor.is_leaf)
        or tensor._is_view()
        or not torch.is_autocast_cache_enabled()
        or torch.is_inference_mode_enabled()
    ):
        return tensor.to(dtype)
    found = _casts.get(id(tensor))
    if found is None or found[0]() is not tensor or found[1].dtype is not dtype:
        with torch.enable_grad():
            found = _casts[id(tensor)] = ref(tensor), tensor.to(dtype)
    return found[1]


def _widest(args: Any, found: torch.dtype) -> torch.dtype:
    if isinstance(args, torch.Tensor):
        if _is_eligible(args) and args.dtype is torch.float32:
            return torch.float32
        return found
    if isinstance(args, (list, tuple)):
        for a in args:
            found = _widest(a, found)
    return found


def _kernel(op: Any, name: str) -> Callable[..., Any]:
    key_set = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_KEY))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key_set):
            if name in _LOWER_PRECISION or name == _LSTM:
                dtype = torch.get_autocast_dtype(active.device_type)
            elif name in _PROMOTE:
                dtype = _widest(args, torch.get_autocast_dtype(active.device_type))
            else:
                dtype = torch.float32

            def convert(tensor: torch.Tensor) -> torch.Tensor:
                return _cast(tensor, dtype)

            return op(*_map(args, convert), **{k: _map(v, convert) for k, v in kwargs.items()})

    return kernel


def _lstm_kernel(op: Any) -> Callable[..., Any]:
    cast = _kernel(op, _LSTM)

    def kernel(input: torch.Tensor, states: list[torch.Tensor], *args: Any) -> Any:
        has_projections = states[0].shape != states[1].shape
        return op.decompose(input, states, *args) if has_projections else cast(input, states, *args)

    return kernel


def register_autocast(overload: Callable[[str], Any]) -> list[torch.library.Library]:
    """Registers the policies, and lets every other operator pass.

    Args:
        overload: finds the ATen overload of a dispatcher name.
    """
    library = torch.library.Library("aten", "IMPL")
    for full_name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"):
        name = full_name.removeprefix("aten::")
        if full_name.startswith("aten::"):
            library.m.impl(name, _KEY, _lazy_kernel(overload, name), False)  # type: ignore[union-attr]
    library.m.impl(_LSTM, _KEY, _lstm_kernel(overload(_LSTM)), False)  # type: ignore[union-attr]
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, _KEY)
    return [library, rest]


def _lazy_kernel(overload: Callable[[str], Any], name: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] | None = None

    def first_call(*args: Any, **kwargs: Any) -> Any:
        nonlocal kernel
        if kernel is None:
            kernel = _kernel(overload(name), name)
        return kernel(*args, **kwargs)

    return first_call
