"""Operators on each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import fx

from torchport.backends.xla.lowering.dtypes import JAX, operand_dtype, result_dtype

_aten = torch.ops.aten
Lowering = Callable[..., Any]


def _in_result(function: Lowering) -> Lowering:
    """Operands are converted to the result's type first."""

    def lower(node: fx.Node, *args: Any, **kwargs: Any) -> Any:
        dtype = result_dtype(node)
        return function(*[jnp.asarray(a, dtype) if a is not None else None for a in args], **kwargs)

    return lower


def _compared(function: Lowering) -> Lowering:
    def lower(node: fx.Node, a: Any, b: Any) -> Any:
        dtype = operand_dtype(node)
        return function(jnp.asarray(a, dtype), jnp.asarray(b, dtype))

    return lower


def _logical(function: Lowering) -> Lowering:
    return lambda node, *args: function(*[jnp.asarray(a) != 0 for a in args])


def _with_alpha(function: Lowering) -> Lowering:
    def lower(node: fx.Node, a: Any, b: Any, alpha: Any = 1) -> Any:
        dtype = result_dtype(node)
        b = jnp.asarray(b, dtype)
        return function(jnp.asarray(a, dtype), b if alpha == 1 else b * jnp.asarray(alpha, dtype))

    return lower


def _round(node: fx.Node, x: Any, decimals: int = 0) -> Any:
    return jnp.round(x, decimals) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _integral(function: Lowering) -> Lowering:
    """Integers are whole already."""
    return lambda node, x: function(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _divide(node: fx.Node, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    dtype = result_dtype(node)
    a, b = jnp.asarray(a, dtype), jnp.asarray(b, dtype)
    if rounding_mode is None:
        return a / b
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.floor_divide(a, b) if rounding_mode == "floor" else lax.div(a, b)
    return _floor_divide(a, b) if rounding_mode == "floor" else jnp.trunc(a / b)


def _floor_divide(a: Any, b: Any) -> Any:
    """As c10::div_floor_floating: from the remainder, which is exact."""
    mod = jnp.fmod(a, b)
    div = (a - mod) / b
    div = jnp.where((mod != 0) & ((b < 0) != (mod < 0)), div - 1, div)
    floor = jnp.floor(div)
    floor = jnp.where(div - floor > 0.5, floor + 1, floor)
    floor = jnp.where(div != 0, floor, jnp.copysign(jnp.zeros_like(a), a / b))
    return jnp.where(b == 0, a / b, floor)


def _clamp(node: fx.Node, x: Any, low: Any = None, high: Any = None) -> Any:
    dtype = result_dtype(node)
    x = jnp.asarray(x, dtype)
    if low is not None:
        x = jnp.maximum(x, jnp.asarray(low, dtype))
    return x if high is None else jnp.minimum(x, jnp.asarray(high, dtype))


def _gelu(node: fx.Node, x: Any, approximate: str = "none") -> Any:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _elu(node: fx.Node, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return jnp.where(x > 0, x * scale, jnp.expm1(x * input_scale) * (alpha * scale)).astype(x.dtype)


def _pow(node: fx.Node, a: Any, b: Any) -> Any:
    dtype = result_dtype(node)
    a, b = jnp.asarray(a, dtype), jnp.asarray(b, dtype)
    if not jnp.issubdtype(dtype, jnp.signedinteger):
        return jnp.power(a, b)
    # Of whole numbers: the reciprocal is cut off, as in aten/src/ATen/native/Pow.h.
    inverse = jnp.where(a == 1, 1, jnp.where(a == -1, jnp.where(b % 2 == 0, 1, -1), 0)).astype(dtype)
    return jnp.where(b < 0, inverse, jnp.power(a, jnp.maximum(b, 0)))


def _to_copy(node: fx.Node, x: Any, dtype: Any = None, **rest: Any) -> Any:
    if dtype is None:
        return x
    to = JAX[dtype]
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(to, jnp.complexfloating):
        x = x.real
    if to == jnp.bool_:
        return x != 0
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(to, jnp.unsignedinteger):
        return x.astype(jnp.int64).astype(to)  # C++ goes by a signed integer, so that -1.0 is 255
    return x.astype(to)


def _sign(node: fx.Node, x: Any) -> Any:
    if x.dtype == jnp.bool_:
        return x
    return (
        jnp.where(jnp.isnan(x), 0, jnp.sign(x)).astype(x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else jnp.sign(x)
    )


_UNARY: dict[str, Lowering] = {
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "erf": jax.scipy.special.erf,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
}
TABLE: dict[Any, Lowering] = {
    **{getattr(_aten, name).default: _in_result(function) for name, function in _UNARY.items()},
    _aten.abs.default: lambda node, x: jnp.abs(x),
    _aten.neg.default: lambda node, x: -x,
    _aten.relu.default: lambda node, x: jnp.maximum(x, 0),
    _aten.sign.default: _sign,
    _aten.ceil.default: _integral(jnp.ceil),
    _aten.floor.default: _integral(jnp.floor),
    _aten.trunc.default: _integral(jnp.trunc),
    _aten.round.default: _round,
    _aten.isinf.default: lambda node, x: jnp.isinf(x),
    _aten.isnan.default: lambda node, x: jnp.isnan(x),
    _aten.bitwise_not.default: lambda node, x: jnp.logical_not(x) if x.dtype == jnp.bool_ else ~x,
    _aten.logical_not.default: _logical(jnp.logical_not),
    _aten.add.Tensor: _with_alpha(lambda a, b: jnp.logical_or(a, b) if a.dtype == jnp.bool_ else a + b),
    _aten.add.Scalar: _with_alpha(lambda a, b: a + b),
    _aten.sub.Tensor: _with_alpha(lambda a, b: a - b),
    _aten.sub.Scalar: _with_alpha(lambda a, b: a - b),
    _aten.mul.Tensor: _in_result(lambda a, b: a * b),
    _aten.mul.Scalar: _in_result(lambda a, b: a * b),
    _aten.div.Tensor: _divide,
    _aten.div.Scalar: _divide,
    _aten.div.Tensor_mode: _divide,
    _aten.div.Scalar_mode: _divide,
    _aten.pow.Tensor_Tensor: _pow,
    _aten.pow.Tensor_Scalar: _pow,
    _aten.pow.Scalar: _pow,
    _aten.fmod.Tensor: _in_result(jnp.fmod),
    _aten.fmod.Scalar: _in_result(jnp.fmod),
    _aten.remainder.Tensor: _in_result(jnp.remainder),
    _aten.remainder.Scalar: _in_result(jnp.remainder),
    _aten.atan2.default: _in_result(jnp.arctan2),
    _aten.maximum.default: _in_result(jnp.maximum),
    _aten.minimum.default: _in_result(jnp.minimum),
    _aten.clamp.default: _clamp,
    _aten.clamp.Tensor: _clamp,
    _aten.hardtanh.default: lambda node, x, low=-1, high=1: _clamp(node, x, low, high),
    _aten.leaky_relu.default: lambda node, x, slope=0.01: jnp.where(x > 0, x, x * slope).astype(x.dtype),
    _aten.gelu.default: _gelu,
    _aten.elu.default: _elu,
    _aten.where.self: lambda node, c, a, b: jnp.where(
        c != 0, jnp.asarray(a, result_dtype(node)), jnp.asarray(b, result_dtype(node))
    ),
    _aten._to_copy.default: _to_copy,
    torch.ops.prims.convert_element_type.default: _to_copy,
    **{getattr(_aten, n).Tensor: _compared(f) for n, f in (("eq", jnp.equal), ("ne", jnp.not_equal))},
    **{getattr(_aten, n).Scalar: _compared(f) for n, f in (("eq", jnp.equal), ("ne", jnp.not_equal))},
    **{getattr(_aten, n).Tensor: _compared(f) for n, f in (("lt", jnp.less), ("le", jnp.less_equal))},
    **{getattr(_aten, n).Scalar: _compared(f) for n, f in (("lt", jnp.less), ("le", jnp.less_equal))},
    **{getattr(_aten, n).Tensor: _compared(f) for n, f in (("gt", jnp.greater), ("ge", jnp.greater_equal))},
    **{getattr(_aten, n).Scalar: _compared(f) for n, f in (("gt", jnp.greater), ("ge", jnp.greater_equal))},
    **{
        getattr(getattr(_aten, f"bitwise_{n}"), overload): _in_result(f)
        for n, f in (("and", jnp.bitwise_and), ("or", jnp.bitwise_or), ("xor", jnp.bitwise_xor))
        for overload in ("Tensor", "Scalar")
    },
    _aten.logical_and.default: _logical(jnp.logical_and),
    _aten.logical_or.default: _logical(jnp.logical_or),
    _aten.logical_xor.default: _logical(jnp.logical_xor),
}
"""By operator."""
