"""What must not have changed since a step was recorded. The first that has is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
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
        self._hyperparameters: list[tuple[dict[str, Any], str, Any, str]] = []
        self._cells: list[tuple[Any, Any, str]] = []
        self._tensors = [(t, t.data_ptr(), t.requires_grad, t.shape) for t in record.tensors]
        self._hooks = [(m, _hook_count(m)) for m in record.modules]
        for module in record.modules:
            name = type(module).__name__
            self._entries += _plain_entries(vars(module), name)
            for table in (module._parameters, module._buffers, module._modules):
                self._entries += [(table, key, value, f"{name}.{key}") for key, value in table.items()]
        self._of_function(function)
        for state in record.optimizers:
            name = type(state.optimizer).__name__
            for group, values in zip(state.optimizer.param_groups, state.groups, strict=True):
                self._hyperparameters += [(group, k, group[k], f"{name}'s {k}") for k in values if k not in free]
        self._entries += self._hyperparameters
        self._tables = _by_table(self._entries)

    def _of_function(self, function: Callable[..., Any]) -> None:
        owner = getattr(function, "__self__", None)
        if owner is not None and hasattr(owner, "__dict__"):
            self._entries += _plain_entries(vars(owner), type(owner).__name__)
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is None:
            return
        for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # a name that is not assigned yet
            if type(value) in _SCALARS:
                self._cells.append((cell, value, name))
        spaces = getattr(function, "__globals__", {})
        self._entries += [
            (spaces, name, spaces[name], name) for name in code.co_names if type(spaces.get(name, self)) in _SCALARS
        ]

    def failed(self) -> str:
        """What has changed; empty when nothing has."""
        for read, table, values in self._tables:
            try:
                same = read(table) == values  # compares by identity first
            except (KeyError, RuntimeError):
                same = False
            if not same:
                return self._change()
        for cell, value, _ in self._cells:
            if cell.cell_contents is not value:
                return self._change()
        for tensor, address, requires_grad, shape in self._tensors:
            if tensor.data_ptr() != address or tensor.requires_grad is not requires_grad or tensor.shape != shape:
                return self._change()
        for module, count in self._hooks:
            if _hook_count(module) != count:
                return f"{type(module).__name__} has other hooks"
        return ""

    def only_hyperparameters_changed(self) -> bool:
        """Whether what has changed are hyperparameters of optimizers: their numbers may be known to come from them."""
        ids = {(id(table), key) for table, key, _, _ in self._hyperparameters}
        return all(
            _same(table.get(key, self), value) or (id(table), key) in ids for table, key, value, _ in self._entries
        )

    def _change(self) -> str:
        """What has changed, by name; empty where what is another object is equal."""
        for table, key, value, name in self._entries:
            now = table.get(key, self)
            if not _same(now, value):
                return f"{name} was {value!r}, is {now!r}" if type(value) in _SCALARS else f"{name} is another one"
        for cell, value, name in self._cells:
            if not _same(cell.cell_contents, value):
                return f"{name} was {value!r}, is {cell.cell_contents!r}"
        for tensor, address, requires_grad, shape in self._tensors:
            if tensor.data_ptr() != address:
                return f"a tensor of {tuple(shape)} has another storage"
            if tensor.requires_grad is not requires_grad:
                return f"requires_grad of a tensor of {tuple(shape)} was {requires_grad}"
            if tensor.shape != shape:
                return f"a tensor of {tuple(shape)} has another shape"
        return ""


def _plain_entries(table: dict[str, Any], name: str) -> list[tuple[dict[str, Any], str, Any, str]]:
    return [(table, key, value, f"{name}.{key}") for key, value in table.items() if type(value) in _SCALARS]


def _by_table(
    entries: Sequence[tuple[dict[str, Any], str, Any, str]],
) -> Sequence[tuple[Callable[[dict[str, Any]], tuple[Any, ...]], dict[str, Any], tuple[Any, ...]]]:
    """The entries in a form that is checked with one call for each table."""
    tables: dict[int, tuple[dict[str, Any], list[str], list[Any]]] = {}
    for table, key, value, _ in entries:
        _, keys, values = tables.setdefault(id(table), (table, [], []))
        keys.append(key)
        values.append(value)
    found = []
    for table, keys, values in tables.values():
        # One key more than once makes itemgetter return a tuple also where there is a single key.
        found.append((itemgetter(*keys, keys[0]), table, (*values, values[0])))
    return found


def _hook_count(module: torch.nn.Module) -> int:
    return (
        len(module._forward_hooks)
        + len(module._forward_pre_hooks)
        + len(module._backward_hooks)
        + len(module._backward_pre_hooks)
    )


def _same(now: Any, value: Any) -> bool:
    if now is value:
        return True
    if isinstance(value, torch.nn.Module):
        return False
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
