"""``scaled_dot_product_attention`` as eager's choice of kernel, where the backend has that.

PyTorch asks a table of devices for the choice, on which ours cannot be put from Python, and takes attention apart.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.backend import Shape
from torchport.ir.call import Call, operand
from torchport.ir.inference import infer
from torchport.ir.node import Node, Value
from torchport.lazy import active

aten = torch.ops.aten
_MATH, _FLASH = 0, 1  # torch.nn.attention.SDPBackend
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_runs_flash: tuple[int, bool] = (-1, False)
"""The generation of the active backend, and whether it runs the flash kernels."""


def fused_sdp_choice(*args: Any, **kwargs: Any) -> int:
    """``aten::_fused_sdp_choice``: the flash kernel where the CPU would take it, else the products that it consists of.

    The CPU's choice depends on shapes and on what the program has enabled. A compiler may refuse the kernel, which has
    no decomposition of its gradient, and is given the products.
    """
    choice = aten._fused_sdp_choice.default._handle.redispatch_boxed(_CPU, *args, **kwargs)
    return _FLASH if choice == _FLASH and active.host_mode is None and _backend_runs_flash() else _MATH


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``aten::scaled_dot_product_attention``, composite as PyTorch's own (aten/src/ATen/native/transformers)."""
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    if fused_sdp_choice(*arguments, scale=scale, enable_gqa=enable_gqa) != _FLASH:
        taken_apart: torch.Tensor = aten.scaled_dot_product_attention.default.decompose(
            *arguments, scale=scale, enable_gqa=enable_gqa
        )
        return taken_apart
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
    attended: torch.Tensor = aten._scaled_dot_product_flash_attention_for_cpu.default(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return attended


def _backend_runs_flash() -> bool:
    global _runs_flash
    backend = active.backend()
    if _runs_flash[0] != active.generation:
        # A node of each, as small as any: what a backend says of an operator does not hang on its sizes.
        q, sums = Shape(torch.float32, (1, 1, 2, 4)), Shape(torch.float32, (1, 1, 2))
        forward = aten._scaled_dot_product_flash_attention_for_cpu.default
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        given = [(forward, (q, q, q), (0.0, False)), (backward, (q, q, q, q, q, sums), (0.0, False))]
        _runs_flash = active.generation, all(bool(backend.supports(_node(*g))) for g in given)
    return _runs_flash[1]


def _node(op: Any, inputs: tuple[Shape, ...], rest: tuple[Any, ...]) -> Node:
    args = (*(operand(i) for i in range(len(inputs))), *rest)
    builder = active.builder()
    leaves = []
    for shape in inputs:
        tensor = torch.zeros(shape.sizes, dtype=shape.dtype)
        data = active.backend().make_computation_data_from_tensor(tensor, shape, active.backend_device())
        leaves.append(Value(builder.make_device_data(data)))
    return Node(Call(op, args, (), inputs, infer(op, args, {}, inputs, [])), tuple(leaves), ())
