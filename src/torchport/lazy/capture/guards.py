"""What must not have changed since a step was recorded. The first that has is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchport.lazy import active
from torchport.lazy.capture.hyperparameters import OptimizerState
from torchport.lazy.capture.record import StepRecord

_SCALARS = (bool, int, float, str, type(None))


def surroundings() -> tuple[Any, ...]:
    """What changes the meaning of every operation: modes, autocast, the default dtype, the active backend."""
    device = active.device_type
    return (
        active.generation,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(device),
        torch.get_autocast_dtype(device),
        torch.get_default_dtype(),
    )


class Guards:
    """The guards of a recorded step.

    Args:
        record: the run.
        function: the step; plain values that it reads from its closure, its globals and its object are guarded.
        free: names of hyperparameters whose changes the program follows.
    """

    def __init__(self, record: StepRecord, function: Callable[..., Any], free: frozenset[str]) -> None:
        self._entries: list[tuple[dict[str, Any], str, Any, str]] = []
        self._cells: list[tuple[Any, Any, str]] = []
        self._tensors = [(t, t.data_ptr(), t.requires_grad, t.shape) for t in record.tensors]
        self._hooks = [(m, _hook_count(m)) for m in record.modules]
        for module in record.modules:
            name = type(module).__name__
            for key, value in vars(module).items():
                if type(value) in _SCALARS:
                    self._entries.append((vars(module), key, value, f"{name}.{key}"))
            for table in (module._parameters, module._buffers, module._modules):
                self._entries += [(table, key, value, f"{name}.{key}") for key, value in table.items()]
        self._of_function(function)
        self._groups = [
            (group, name, value, f"{type(state.optimizer).__name__}'s {name}")
            for state in record.optimizers
            for group, values in zip(state.optimizer.param_groups, state.groups, strict=True)
            for name, value in values.items()
            if name not in free
        ]

    def _of_function(self, function: Callable[..., Any]) -> None:
        owner = getattr(function, "__self__", None)
        if owner is not None and hasattr(owner, "__dict__"):
            for key, value in vars(owner).items():
                if type(value) in _SCALARS:
                    self._entries.append((vars(owner), key, value, f"{type(owner).__name__}.{key}"))
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is None:
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if type(value) in _SCALARS:
                self._cells.append((cell, value, name))
        spaces = function.__globals__
        for name in code.co_names:
            if type(spaces.get(name, self)) in _SCALARS:
                self._entries.append((spaces, name, spaces[name], name))

    def failed(self) -> str:
        """What has changed; empty when nothing has."""
        for table, key, value, name in self._entries:
            now = table.get(key, self)
            if now is not value and (type(value) not in _SCALARS or type(now) is not type(value) or now != value):
                return f"{name} is another one" if type(value) not in _SCALARS else f"{name} was {value!r}, is {now!r}"
        for cell, value, name in self._cells:
            now = cell.cell_contents
            if now is not value and (type(now) is not type(value) or now != value):
                return f"{name} was {value!r}, is {now!r}"
        for group, name, value, where in self._groups:
            now = group.get(name)
            if now is not value and not _same(now, value):
                return f"{where} was {value!r}, is {now!r}"
        for tensor, address, requires_grad, shape in self._tensors:
            if tensor.data_ptr() != address:
                return f"a tensor of {tuple(shape)} has another storage"
            if tensor.requires_grad is not requires_grad:
                return f"requires_grad of a tensor of {tuple(shape)} was {requires_grad}"
            if tensor.shape != shape:
                return f"a tensor of {tuple(shape)} has another shape"
        for module, count in self._hooks:
            if _hook_count(module) != count:
                return f"{type(module).__name__} has other hooks"
        return ""


def _hook_count(module: torch.nn.Module) -> int:
    return (
        len(module._forward_hooks)
        + len(module._forward_pre_hooks)
        + len(module._backward_hooks)
        + len(module._backward_pre_hooks)
    )


def _same(now: Any, value: Any) -> bool:
    if isinstance(now, torch.Tensor) or isinstance(value, torch.Tensor):
        both = isinstance(now, torch.Tensor) and isinstance(value, torch.Tensor)
        return both and now.device == value.device and now.device.type == "cpu" and bool(torch.equal(now, value))
    return (type(now) is type(value) and bool(now == value)) or (isinstance(now, list) and tuple(now) == value)


def same_hyperparameters(a: Sequence[OptimizerState], b: Sequence[OptimizerState]) -> frozenset[str]:
    """The names of the hyperparameters that differ between two runs."""
    names = set()
    for x, y in zip(a, b, strict=True):
        for before, now in zip(x.groups, y.groups, strict=True):
            names |= {k for k, v in now.items() if not _same(before.get(k), v)}
    return frozenset(names)
