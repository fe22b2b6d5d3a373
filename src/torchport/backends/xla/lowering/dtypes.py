"""Scalar types of PyTorch in jax, and the type that an operator computes in."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from torch import fx

JAX = {
    torch.float64: jnp.float64,
    torch.float32: jnp.float32,
    torch.float16: jnp.float16,
    torch.bfloat16: jnp.bfloat16,
    torch.complex64: jnp.complex64,
    torch.complex128: jnp.complex128,
    torch.int64: jnp.int64,
    torch.int32: jnp.int32,
    torch.int16: jnp.int16,
    torch.int8: jnp.int8,
    torch.uint8: jnp.uint8,
    torch.bool: jnp.bool_,
}
"""PyTorch's type → jax's."""


def result_dtype(node: fx.Node) -> Any:
    """The type of a node's result."""
    value = node.meta["val"]
    return JAX[(value[0] if isinstance(value, (list, tuple)) else value).dtype]


def operand_dtype(node: fx.Node) -> Any:
    """The type in which a comparison has its operands."""
    a, b = (x.meta["val"] if isinstance(x, fx.Node) else x for x in node.args[:2])
    return JAX[torch.result_type(a, b)]  # type: ignore[arg-type]
