"""Numbers that an optimizer computes in Python: which formula of its hyperparameters and step count each one is.

A number of a graph is taken to come from an optimizer only when one formula gives it, bit by bit, in two runs in which
it differs. The formulas are those of torch/optim/{sgd,adam,adamw,nadam,radam,adamax,adagrad,rmsprop}.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import Optimizer

Formula = Callable[[Mapping[str, Any], float], float]

_FORMULAS: dict[str, Formula] = {
    "lr": lambda g, t: g["lr"],
    "-lr": lambda g, t: -g["lr"],
    "weight_decay": lambda g, t: g["weight_decay"],
    "1 - lr·weight_decay": lambda g, t: 1 - g["lr"] * g["weight_decay"],
    "1 - lr·lambd": lambda g, t: 1 - g["lr"] * g["lambd"],
    "momentum": lambda g, t: g["momentum"],
    "1 - dampening": lambda g, t: 1 - g["dampening"],
    "eps": lambda g, t: g["eps"],
    "lr / (1 - β1^t)": lambda g, t: g["lr"] / (1 - g["betas"][0] ** t),
    "-lr / (1 - β1^t)": lambda g, t: g["lr"] / (1 - g["betas"][0] ** t) * -1,
    "√(1 - β2^t)": lambda g, t: (1 - g["betas"][1] ** t) ** 0.5,
    "sqrt(1 - β2^t)": lambda g, t: math.sqrt(1 - g["betas"][1] ** t),
    "1 - β1^t": lambda g, t: 1 - g["betas"][0] ** t,
    "1 - β2^t": lambda g, t: 1 - g["betas"][1] ** t,
    "-lr / (1 + (t-1)·lr_decay)": lambda g, t: -(g["lr"] / (1 + (t - 1) * g["lr_decay"])),
    "β1": lambda g, t: g["betas"][0],
    "1 - β1": lambda g, t: 1 - g["betas"][0],
    "β2": lambda g, t: g["betas"][1],
    "1 - β2": lambda g, t: 1 - g["betas"][1],
}


@dataclass(frozen=True, slots=True)
class HyperparameterSource:
    """Where a number comes from: a formula of one group of an optimizer, at the step count of one of its parameters."""

    optimizer: Optimizer
    group: int
    parameter: torch.Tensor | None
    formula: str

    def value(self) -> float:
        """The number of the step that comes next."""
        return _FORMULAS[self.formula](self.optimizer.param_groups[self.group], self._next_step())

    def _next_step(self) -> float:
        if self.parameter is None:
            return 0.0
        return float(self.optimizer.state[self.parameter]["step"]) + 1


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """An optimizer that takes part in a step, before the step.

    Attributes:
        groups: the hyperparameters of each group.
        steps: the step count of each parameter that has one on the host.
        counters: before the step, every count on the host with its value; after it, those that went up by one.
        changed_inside: a hyperparameter that was another one after the step; empty when none was.
    """

    optimizer: Optimizer
    groups: list[dict[str, Any]]
    steps: list[dict[torch.Tensor, float]]
    counters: list[tuple[torch.Tensor, float]]
    changed_inside: str = ""

    def after(self) -> OptimizerState:
        """The same, when the step has ended."""
        for group, now in zip(self.groups, _groups(self.optimizer), strict=True):
            for name, value in group.items():
                if not _equal(value, now.get(name)):
                    return replace(self, changed_inside=f"{type(self.optimizer).__name__}'s {name}")
        before = {id(c): value for c, value in self.counters}
        counted = []
        for counter, value in _counters(self.optimizer):
            went_up = value - before.get(id(counter), 0.0)
            if went_up == 1:
                counted.append((counter, value))
            elif went_up:
                return replace(self, changed_inside=f"a step count of {type(self.optimizer).__name__}")
        return replace(self, counters=counted)

    def numbers(self) -> Iterator[tuple[HyperparameterSource, float]]:
        """Every number that the formulas give, with its source."""
        for index, (group, steps) in enumerate(zip(self.groups, self.steps, strict=True)):
            plain = {k: float(v) if _is_host_number(v) else v for k, v in group.items()}
            counts: dict[float, torch.Tensor] = {}
            for parameter, step in steps.items():
                counts.setdefault(step, parameter)
            places: list[tuple[float, torch.Tensor | None]] = [*counts.items()] or [(-1.0, None)]
            for step, counted in places:
                for name, formula in _FORMULAS.items():
                    try:
                        value = formula(plain, step + 1)
                    except (KeyError, TypeError, ZeroDivisionError, OverflowError):
                        continue
                    if isinstance(value, float):
                        yield HyperparameterSource(self.optimizer, index, counted, name), value


def read_optimizer(optimizer: Optimizer) -> OptimizerState:
    """The state of an optimizer before it steps."""
    steps = []
    for group in optimizer.param_groups:
        found = {}
        for p in group["params"]:
            step = optimizer.state.get(p, {}).get("step")
            if p.grad is not None and isinstance(step, torch.Tensor) and step.device.type == "cpu":
                found[p] = float(step)
            elif p.grad is not None and step is None and "betas" in group:
                found[p] = 0.0
        steps.append(found)
    return OptimizerState(optimizer, _groups(optimizer), steps, _counters(optimizer))


def explain(value: float, states: list[OptimizerState], before: float, states_before: list[OptimizerState]) -> Any:
    """The source that gives a number in one run, and another in an earlier one; ``None`` where none does."""
    for now, then in zip(states, states_before, strict=True):
        earlier = {(s.group, s.formula, id(s.parameter)): v for s, v in then.numbers()}
        for source, number in now.numbers():
            if number == value and earlier.get((source.group, source.formula, id(source.parameter))) == before:
                return source
    return None


def _is_host_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1


def _groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{k: _frozen(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return value.detach().clone()
    return tuple(value) if isinstance(value, list) else value


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and (a is b or bool(torch.equal(a, b)))
    return bool(a == b) and type(a) is type(b)


def _counters(optimizer: Optimizer) -> list[tuple[torch.Tensor, float]]:
    found = []
    for state in optimizer.state.values():
        step = state.get("step") if isinstance(state, dict) else None
        if isinstance(step, torch.Tensor) and step.device.type == "cpu":
            found.append((step, float(step)))
    return found
