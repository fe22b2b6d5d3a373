"""The ways in which a sweep makes and calls a module."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from sweeps.modes import tensors_of
from sweeps.placement import Placement

with warnings.catch_warnings():
    # Deprecated imports and the like inside PyTorch's test tools are no concern of ours.
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_utils import noncontiguous_like

Arrange = Callable[[torch.Tensor], torch.Tensor]


def channels_last(t: torch.Tensor) -> torch.Tensor:
    """The tensor with its channels innermost in memory, if it is one of images or volumes."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if is_lazy(t) or t.dim() not in formats:
        return t
    return t.detach().to(memory_format=formats[t.dim()]).requires_grad_(t.requires_grad)


def has_channels(module_input: Any) -> bool:
    """Whether an image or a volume is among the arguments of the call."""
    call = module_input.forward_input
    return any(t.dim() in (4, 5) for t in tensors_of((list(call.args), call.kwargs)))


@dataclass(frozen=True, slots=True)
class ModuleMode:
    """A way in which a sweep makes and calls a module.

    Attributes:
        text: what it is, for the page.
        training: whether the module is in training.
        flag: the argument of the constructor that it is about; without one, every module has the mode.
        arrange: how the tensors of the call and the gradients of its results lie in memory.
        arrange_module: how parameters and buffers do.
        takes: whether an input of the database is one for it.
    """

    text: str
    training: bool = True
    flag: str = ""
    arrange: Arrange = lambda t: t
    arrange_module: Arrange = lambda t: t
    takes: Callable[[Any], bool] = lambda module_input: True

    def inputs(self, info: Any, dtype: torch.dtype) -> list[Any]:
        """The database's inputs for it; none where the module does not have the mode."""
        if self.flag and self.flag not in _parameters(info.module_cls):
            return []
        torch.manual_seed(0)
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=self.training)
        return [i for i in inputs if self.takes(i)]

    def make(self, module_class: type[nn.Module], arguments: Any, device: str, dtype: torch.dtype) -> nn.Module:
        """The module, on the device."""
        args, kwargs = copy.deepcopy((arguments.args, arguments.kwargs))
        if self.flag == "device":
            args, kwargs = Placement(device).place((args, kwargs | {"device": device, "dtype": dtype}))
            module = module_class(*args, **kwargs)
        else:
            flags = {"inplace": True} if self.flag == "inplace" else {}
            module = module_class(*args, **kwargs | flags).to(device, dtype)
        return module._apply(self.arrange_module).train(self.training)

    def argument(self, x: Any) -> Any:
        """An argument of one call: a copy, where the call writes to it."""
        # Nothing may be written in place to a leaf that wants a gradient.
        return x.clone() if self.flag == "inplace" and isinstance(x, torch.Tensor) else x

    def arranged(self, x: Any) -> Any:
        """An argument whose tensors lie as the mode wants them."""
        if isinstance(x, PackedSequence):
            return PackedSequence(self.arranged(x.data), *x[1:])
        if isinstance(x, tuple | list):
            return type(x)(self.arranged(v) for v in x)
        return self.arrange(x) if isinstance(x, torch.Tensor) and x.layout is torch.strided else x


def _parameters(module_class: type[nn.Module]) -> set[str]:
    """The names of the constructor's parameters, with those that a recurrent one hands to its base."""
    classes = (module_class, nn.RNNBase) if issubclass(module_class, nn.RNNBase) else (module_class,)
    return {name for c in classes for name in inspect.signature(c).parameters}


MODULE_MODES = {
    "train": ModuleMode("in training"),
    "eval": ModuleMode("in evaluation", training=False),
    "strided": ModuleMode("in training, whatever is handed over with gaps in memory", arrange=noncontiguous_like),
    "channels-last": ModuleMode(
        "in training, images and volumes with their channels last",
        arrange=channels_last,
        arrange_module=channels_last,
        takes=has_channels,
    ),
    "inplace": ModuleMode("in training, `inplace=True`", flag="inplace"),
    "made-there": ModuleMode("in training, made on the device by `device=`", flag="device"),
}
"""Name → way."""
