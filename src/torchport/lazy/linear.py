"""``linear`` as one operation, forward, and as its three matrix products, backward.

PyTorch would take it apart into transposes, views and ``addmm``, each an operation and a node of the autograd graph;
backends would rather see it whole, and the most frequent operator of all is worth a shorter path. The products are
those of eager PyTorch, in its order of operands, so results are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchport import metrics
from torchport.backend import Shape, Value
from torchport.ir.call import Call, operand
from torchport.ir.inference import infer
from torchport.lazy import active
from torchport.lazy.recording import read
from torchport.lazy.source import user_location
from torchport.lazy.tensor import dense_shape, new_tensor
from torchport.lazy.trace import LOCK

aten = torch.ops.aten
_COUNTER = metrics.counter("lazy::linear_backward")


@dataclass(frozen=True, slots=True)
class _Plan:
    """The calls of one backward pass; ``None`` where the operand is flat already, or the gradient is not wanted."""

    flatten_grad: Call | None
    flatten_input: Call | None
    grad_input: Call | None
    unflatten: Call | None
    transpose_grad: Call | None
    grad_weight: Call | None
    grad_bias: Call | None


_plans: dict[Any, _Plan] = {}
_PLANS_LIMIT = 1 << 14


def _call(op: Any, args: tuple[Any, ...], *inputs: Shape) -> Call:
    return Call(op, args, (), inputs, infer(op, args, {}, inputs, []))


def _out(call: Call) -> Shape:
    shape = call.outputs[0]
    assert shape is not None
    return shape


def _flat(shape: Shape) -> tuple[Call | None, Shape]:
    if len(shape.sizes) == 2:
        return None, shape
    rows = shape.numel // shape.sizes[-1] if shape.sizes[-1] else 0
    call = _call(aten.view.default, (operand(0), (rows, shape.sizes[-1])), Shape(shape.dtype, shape.sizes))
    return call, _out(call)


def _plan(input: Shape, grad: Shape, weight: Shape, mask: tuple[bool, bool, bool]) -> _Plan:
    flatten_grad, flat_grad = _flat(grad)
    flatten_input, flat_input = _flat(input)
    grad_input = unflatten = transpose = grad_weight = grad_bias = None
    if mask[0]:
        grad_input = _call(aten.mm.default, (operand(0), operand(1)), flat_grad, weight)
        if flatten_input is not None:
            unflatten = _call(aten.view.default, (operand(0), input.sizes), _out(grad_input))
    if mask[1]:
        transpose = _call(aten.t.default, (operand(0),), flat_grad)
        grad_weight = _call(aten.mm.default, (operand(0), operand(1)), _out(transpose), flat_input)
    if mask[2]:
        grad_bias = _call(aten.sum.dim_IntList, (operand(0), (0,)), flat_grad)
    return _Plan(flatten_grad, flatten_input, grad_input, unflatten, transpose, grad_weight, grad_bias)


def as_eager_folds(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``aten::linear`` by this kernel, which traces it whole; in parts where eager asks whether the weight is trained.

    An input that is no matrix in memory eager copies into one if the weight requires a gradient; else it takes a batch
    of products, which round in another way (``should_fold`` in aten/src/ATen/native/LinearAlgebra.cpp). A graph does
    not say which weights do.
    """

    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if input.dim() < 3 or weight.dim() != 2 or not weight.requires_grad or input.is_contiguous():
            return kernel(input, weight, bias)
        rows = input.reshape(input.shape[:-1].numel(), input.shape[-1])
        product = kernel(rows, weight).view(*input.shape[:-1], weight.shape[0])
        return product if bias is None else product + bias

    return linear


def _conjugate(shape: Shape) -> Call:
    return _call(aten.conj_physical.default, (operand(0),), shape)


def linear_backward(
    self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, output_mask: list[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """``aten::linear_backward``: the gradients of input, weight and bias that the mask asks for."""
    with LOCK:
        x, x_shape = read(self)
        g, g_shape = read(grad_output)
        w, w_shape = read(weight)
        key = (x_shape, g_shape, w_shape, *output_mask)
        plan = _plans.get(key)
        if plan is None:
            if len(_plans) >= _PLANS_LIMIT:
                _plans.clear()
            plan = _plans[key] = _plan(x_shape, g_shape, w_shape, tuple(output_mask))  # type: ignore[arg-type]
        _COUNTER.value += 1
        trace, builder, location = active.trace, active.builder(), user_location()

        def add(call: Call | None, *operands: Value) -> Value:
            return operands[0] if call is None else Value(trace.add(builder, call, operands, (), location))

        def tensor(call: Call, *operands: Value) -> torch.Tensor:
            return new_tensor(dense_shape(_out(call)), add(call, *operands))

        if w_shape.is_complex:
            w = add(_conjugate(w_shape), w)
        if x_shape.is_complex:
            x = add(_conjugate(x_shape), x)
        g = add(plan.flatten_grad, g)
        grad_input = grad_weight = grad_bias = None
        if plan.grad_input is not None:
            if plan.unflatten is None:
                grad_input = tensor(plan.grad_input, g, w)
            else:
                grad_input = tensor(plan.unflatten, add(plan.grad_input, g, w))
        if plan.grad_weight is not None:
            grad_weight = tensor(plan.grad_weight, add(plan.transpose_grad, g), add(plan.flatten_input, x))
        if plan.grad_bias is not None:
            grad_bias = tensor(plan.grad_bias, g)
        return grad_input, grad_weight, grad_bias


def differentiable_linear_backward(
    self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, output_mask: list[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The same for autograd: where the gradients are to be differentiated, made of products that can be.

    PyTorch has a formula for the whole, but none for complex numbers.
    """
    if not torch.is_grad_enabled():
        with torch._C._AutoDispatchBelowAutograd():
            found: tuple[torch.Tensor | None, ...] = aten.linear_backward.default(
                self, grad_output, weight, output_mask
            )
            return found  # type: ignore[return-value]  # three, by its schema
    grad = grad_output.reshape(-1, weight.shape[0])
    return (
        grad_output.matmul(weight.conj()) if output_mask[0] else None,
        grad.t().mm(self.reshape(-1, weight.shape[1]).conj()) if output_mask[1] else None,
        grad.sum(0) if output_mask[2] else None,
    )
