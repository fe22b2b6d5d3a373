"""What a function can reach at first sight: the tensors, modules and optimizers in its closure, globals and object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchport.backend import LazyTensor
from torchport.lazy import active
from torchport.lazy.tensor import lazy_tensor_of

_DEEPEST = 3


def spaces_of(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The names that a function reads from its object, its closure and its globals, with their values."""
    owner = getattr(function, "__self__", None)
    if owner is not None and hasattr(owner, "__dict__"):
        for name, value in vars(owner).items():
            yield f"{type(owner).__name__}.{name}", value
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # a name that is not assigned yet
    spaces = getattr(function, "__globals__", {})
    for name in code.co_names:
        if name in spaces:
            yield name, spaces[name]


def tensors_of(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors on the device in a value: in a module, an optimizer, a list, a dictionary, an object's attributes."""
    if isinstance(value, torch.Tensor):
        if value.device.type == active.device_type:
            yield value
    elif isinstance(value, nn.Module):
        yield from tensors_of([*value.parameters(), *value.buffers()], depth)
    elif isinstance(value, Optimizer):
        for group in value.param_groups:
            yield from tensors_of(group["params"], depth)
        yield from tensors_of(list(value.state.values()), depth)
    elif depth < _DEEPEST and isinstance(value, (list, tuple, set)):
        for item in value:
            yield from tensors_of(item, depth + 1)
    elif depth < _DEEPEST and isinstance(value, dict):
        for item in list(value.values()):
            yield from tensors_of(item, depth + 1)
    elif (
        depth == 0 and hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)) and not callable(value)
    ):
        yield from tensors_of(list(vars(value).values()), _DEEPEST - 1)


def lazy_or_none(value: Any) -> LazyTensor | None:
    """The lazy tensor of a tensor on the device; ``None`` of anything else."""
    if not isinstance(value, torch.Tensor) or value.device.type != active.device_type:
        return None
    try:
        return lazy_tensor_of(value)
    except TypeError:
        return None
