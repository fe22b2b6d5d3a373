"""Random operators: the generators they draw from, and how each operator is given one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.backends.interpreter.layout import check_follows, empty_in_layout
from torchport.ir.shape import Shape

_DEFAULT_GENERATOR = threading.Lock()
"""Held while a default generator of torch stands in for ours; it is the process's, not ours."""

_FILLS = {
    "aten::bernoulli.p": "bernoulli_",
    "aten::bernoulli.Tensor": "bernoulli_",
    "aten::cauchy": "cauchy_",
    "aten::exponential": "exponential_",
    "aten::geometric": "geometric_",
    "aten::log_normal": "log_normal_",
    "aten::normal_functional": "normal_",
    "aten::random": "random_",
    "aten::random.from": "random_",
    "aten::random.to": "random_",
    "aten::uniform": "uniform_",
}
"""Operators that take a tensor only for its layout, and return it filled: their functional form would copy it first."""


def fill_overload(op: OpOverload) -> OpOverload | None:
    """The in-place overload behind an operator that fills a tensor with random numbers."""
    name = _FILLS.get(op._name)
    return None if name is None else matching_overload(op, getattr(torch.ops.aten, name))


def matching_overload(op: OpOverload, packet: Any, needs_generator: bool = False) -> OpOverload | None:
    """The overload of another packet that takes the same arguments by the same names, a generator apart."""
    wanted = _signature(op)
    for name in packet.overloads():
        overload: OpOverload = getattr(packet, name)
        has_generator = any(a.name == "generator" for a in overload._schema.arguments)
        if _signature(overload) == wanted and (has_generator or not needs_generator):
            return overload
    return None


def _signature(op: OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments if a.name != "generator"]


def with_generator(op: OpOverload) -> OpOverload | None:
    """The overload that does the same and takes a generator; ``None`` where there is none."""
    if any(a.name == "generator" for a in op._schema.arguments):
        return op
    return matching_overload(op, op.overloadpacket, needs_generator=True)


def filler(fill: Callable[..., torch.Tensor], shape: Shape) -> Callable[..., torch.Tensor]:
    """A functional form of an in-place filling operator, without the copy of what is overwritten anyway.

    Numbers are drawn in an order that depends on the layout, so the new tensor has the layout of the one that the
    program fills, also where that leaves gaps.

    Raises:
        ValueError: the layout's sizes are symbolic, and its strides do not follow from them.
    """
    check_follows(shape)

    def filled(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return fill(empty_in_layout(x, shape), *args, **kwargs)

    return filled


def on_generator(function: Callable[..., Any], generator: torch.Generator) -> Callable[..., Any]:
    """A function that draws from torch's default generator, made to draw from ours: states are swapped around it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        default = default_generator(generator.device)
        with _DEFAULT_GENERATOR:
            saved = default.get_state()
            default.set_state(generator.get_state())
            try:
                return function(*args, **kwargs)
            finally:
                generator.set_state(default.get_state())
                default.set_state(saved)

    return call


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that torch itself uses on a device."""
    if device.type == "cuda":
        generators: tuple[torch.Generator, ...] = torch.cuda.default_generators
        return generators[device.index or 0]
    return torch.default_generator


def cpu_native_dropout(generator: torch.Generator) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """``aten.native_dropout`` on the CPU, which has no generator argument, drawing from ours.

    Source: native_dropout_cpu in aten/src/ATen/native/Dropout.cpp; the same operations in the same order.
    """

    def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
        if x.numel() == 0 or train is False:
            output, mask = torch.native_dropout(x, p, train)
            return output, mask
        keep = 1.0 - p
        mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(keep, generator=generator)
        # C++ multiplies by a Scalar, which is rounded to the dtype of the tensor; a Python number would not be.
        return torch.ops.aten.mul_.Scalar(x.mul(mask), 0.0 if keep == 0 else 1.0 / keep), mask

    return native_dropout
