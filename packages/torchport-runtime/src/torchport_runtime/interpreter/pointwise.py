"""Operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from torchport_runtime.interpreter.dtypes import Array, as_float, promoted

Function = Callable[..., Any]


def _binary(function: Function) -> Function:
    """In the promoted type of both."""

    def run(a: Any, b: Any) -> Any:
        dtype = promoted([a, b])
        return function(np.asarray(a, dtype), np.asarray(b, dtype))

    return run


def _scaled(function: Function) -> Function:
    """``function(a, alpha * b)``, as ``add`` and ``sub`` have it."""

    def run(a: Any, b: Any, alpha: Any = 1) -> Any:
        dtype = promoted([a, b])
        b = np.asarray(b, dtype)
        return function(np.asarray(a, dtype), b if alpha == 1 else b * np.asarray(alpha, dtype))

    return run


def _float_unary(function: Function) -> Function:
    return lambda x: function(as_float(x))


def _true_divide(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    dtype = promoted([a, b])
    if rounding_mode is None:
        if dtype.kind in "biu":
            dtype = np.dtype(np.float32)
        return np.true_divide(np.asarray(a, dtype), np.asarray(b, dtype))
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    if rounding_mode == "floor":
        return np.floor_divide(a, b)
    if dtype.kind in "iu":
        quotient = np.abs(a) // np.abs(b)
        return np.where((a < 0) != (b < 0), -quotient, quotient).astype(dtype)
    return np.trunc(a / b)


def _pow(a: Any, b: Any) -> Any:
    dtype = promoted([a, b])
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    if dtype.kind != "i":
        return np.power(a, b)
    # numpy refuses whole numbers to negative powers; PyTorch rounds them towards zero.
    powers = np.power(a, np.maximum(b, 0))
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, inverse, powers).astype(dtype)


def _clamp(x: Array, low: Any = None, high: Any = None) -> Any:
    dtype = promoted([v for v in (x, low, high) if v is not None])
    x = x.astype(dtype)
    if low is not None:
        x = np.maximum(x, np.asarray(low, dtype))
    return x if high is None else np.minimum(x, np.asarray(high, dtype))


def _where(condition: Array, a: Any, b: Any) -> Any:
    dtype = promoted([a, b])
    return np.where(condition.astype(bool), np.asarray(a, dtype), np.asarray(b, dtype))


def _sigmoid(x: Array) -> Any:
    x = as_float(x)
    if x.dtype.kind == "c":
        return 1 / (1 + np.exp(-x))
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    e = np.exp(-np.abs(wide))
    return np.where(wide >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _softplus(x: Array, beta: Any = 1, threshold: Any = 20) -> Any:
    return np.where(x * beta > threshold, x, np.log1p(np.exp(np.minimum(x * beta, threshold))) / beta).astype(x.dtype)


def erf(x: Array) -> Any:
    """The error function, computed in double precision by its series and, from 2.5, its continued fraction.

    Source: Abramowitz and Stegun, 7.1.5 and 7.1.14. 60 terms of either leave less than 1e-15.
    """
    dtype = as_float(x).dtype
    z = np.asarray(x, np.float64)
    small = np.abs(z) < 2.5
    inner = np.where(small, z, 0.0)
    term = inner.copy()
    total = inner.copy()
    for n in range(1, 60):
        term = term * (-inner * inner / n)
        total = total + term / (2 * n + 1)
    series = total * (2 / np.sqrt(np.pi))
    outer = np.where(small, 3.0, np.abs(z))
    fraction = outer.copy()
    for n in range(60, 0, -1):
        fraction = outer + (n / 2) / fraction
    tail = 1 - np.exp(-outer * outer) / (fraction * np.sqrt(np.pi))
    found = np.where(np.isnan(z), z, np.where(small, series, np.sign(z) * tail))
    return found.astype(dtype)


def _gelu(x: Array, approximate: str = "none") -> Any:
    if approximate == "tanh":
        wide = x.astype(np.float32) if x.dtype == np.float16 else x
        inner = np.sqrt(2 / np.pi).astype(wide.dtype) * (wide + wide.dtype.type(0.044715) * wide**3)
        return (0.5 * wide * (1 + np.tanh(inner))).astype(x.dtype)
    wide = x.astype(np.float64)
    return (0.5 * wide * (1 + erf(wide / np.sqrt(2)))).astype(x.dtype)


def _elu(x: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return np.where(x > 0, x * scale, np.expm1(np.minimum(x, 0) * input_scale) * alpha * scale).astype(x.dtype)


def _logit(x: Array, eps: float | None = None) -> Any:
    x = as_float(x)
    if eps is not None:
        x = np.clip(x, x.dtype.type(eps), x.dtype.type(1 - eps))
    return np.log(x / (1 - x))


def _round(x: Array, decimals: int = 0) -> Any:
    return np.round(x, decimals)


def _logical(function: Function) -> Function:
    return lambda a, b: function(np.asarray(a).astype(bool), np.asarray(b).astype(bool))


def _masked_fill(x: Array, mask: Array, value: Any) -> Any:
    return np.where(mask, np.asarray(value, x.dtype), x)


def _rsqrt(x: Array) -> Any:
    x = as_float(x)
    return (1 / np.sqrt(x)).astype(x.dtype)


def _hardtanh(x: Array, low: Any = -1, high: Any = 1) -> Any:
    return np.clip(x, np.asarray(low, x.dtype), np.asarray(high, x.dtype))


def _leaky_relu(x: Array, slope: Any = 0.01) -> Any:
    return np.where(x > 0, x, x * np.asarray(slope, x.dtype))


def _addcmul(x: Array, a: Array, b: Array, value: Any = 1) -> Any:
    return x + np.asarray(value, x.dtype) * a * b


def _addcdiv(x: Array, a: Array, b: Array, value: Any = 1) -> Any:
    return x + np.asarray(value, x.dtype) * (a / b)


POINTWISE: dict[str, Function] = {
    **{f"aten.add.{v}": _scaled(np.add) for v in ("Tensor", "Scalar")},
    **{f"aten.sub.{v}": _scaled(np.subtract) for v in ("Tensor", "Scalar")},
    **{f"aten.rsub.{v}": lambda a, b, alpha=1: _scaled(np.subtract)(b, a, alpha) for v in ("Tensor", "Scalar")},
    **{f"aten.mul.{v}": _binary(np.multiply) for v in ("Tensor", "Scalar")},
    **{f"aten.div.{v}": _true_divide for v in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")},
    **{f"aten.pow.{v}": _pow for v in ("Tensor_Tensor", "Tensor_Scalar", "Scalar")},
    **{f"aten.remainder.{v}": _binary(np.mod) for v in ("Tensor", "Scalar", "Scalar_Tensor")},
    **{f"aten.fmod.{v}": _binary(np.fmod) for v in ("Tensor", "Scalar")},
    **{f"aten.eq.{v}": _binary(np.equal) for v in ("Tensor", "Scalar")},
    **{f"aten.ne.{v}": _binary(np.not_equal) for v in ("Tensor", "Scalar")},
    **{f"aten.lt.{v}": _binary(np.less) for v in ("Tensor", "Scalar")},
    **{f"aten.le.{v}": _binary(np.less_equal) for v in ("Tensor", "Scalar")},
    **{f"aten.gt.{v}": _binary(np.greater) for v in ("Tensor", "Scalar")},
    **{f"aten.ge.{v}": _binary(np.greater_equal) for v in ("Tensor", "Scalar")},
    **{f"aten.bitwise_and.{v}": _binary(np.bitwise_and) for v in ("Tensor", "Scalar")},
    **{f"aten.bitwise_or.{v}": _binary(np.bitwise_or) for v in ("Tensor", "Scalar")},
    **{f"aten.bitwise_xor.{v}": _binary(np.bitwise_xor) for v in ("Tensor", "Scalar")},
    **{f"aten.clamp.{v}": _clamp for v in ("default", "Tensor")},
    "aten.where.self": _where,
    **{f"aten.masked_fill.{v}": _masked_fill for v in ("Scalar", "Tensor")},
    "aten.maximum.default": _binary(np.maximum),
    "aten.minimum.default": _binary(np.minimum),
    "aten.atan2.default": lambda a, b: np.arctan2(as_float(a), as_float(b)),
    "aten.clamp_min.default": lambda x, low: _clamp(x, low),
    "aten.clamp_max.default": lambda x, high: _clamp(x, None, high),
    "aten.logical_and.default": _logical(np.logical_and),
    "aten.logical_or.default": _logical(np.logical_or),
    "aten.logical_xor.default": _logical(np.logical_xor),
    "aten.logical_not.default": lambda x: ~x.astype(bool),
    "aten.bitwise_not.default": np.bitwise_not,
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": _addcdiv,
    "aten.neg.default": np.negative,
    "aten.abs.default": np.abs,
    "aten.sign.default": lambda x: x if x.dtype == bool else np.sign(x),
    "aten.floor.default": lambda x: x if x.dtype.kind in "iu" else np.floor(x),
    "aten.ceil.default": lambda x: x if x.dtype.kind in "iu" else np.ceil(x),
    "aten.trunc.default": lambda x: x if x.dtype.kind in "iu" else np.trunc(x),
    "aten.round.default": _round,
    "aten.round.decimals": _round,
    "aten.isnan.default": np.isnan,
    "aten.isinf.default": np.isinf,
    "aten.relu.default": lambda x: np.maximum(x, x.dtype.type(0)),
    "aten.sigmoid.default": _sigmoid,
    "aten.gelu.default": _gelu,
    "aten.silu.default": lambda x: x * _sigmoid(x),
    "aten.elu.default": _elu,
    "aten.softplus.default": _softplus,
    "aten.hardtanh.default": _hardtanh,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.hardswish.default": lambda x: (x * np.clip(x + 3, 0, 6) / 6).astype(x.dtype),
    "aten.hardsigmoid.default": lambda x: (np.clip(x + 3, 0, 6) / 6).astype(x.dtype),
    "aten.mish.default": lambda x: (x * np.tanh(_softplus(x))).astype(x.dtype),
    "aten.rsqrt.default": _rsqrt,
    "aten.reciprocal.default": _float_unary(lambda x: (1 / x).astype(x.dtype)),
    "aten.erf.default": erf,
    "aten.logit.default": _logit,
    **{
        f"aten.{name}.default": _float_unary(function)
        for name, function in {
            "sqrt": np.sqrt,
            "exp": np.exp,
            "exp2": np.exp2,
            "expm1": np.expm1,
            "log": np.log,
            "log2": np.log2,
            "log10": np.log10,
            "log1p": np.log1p,
            "sin": np.sin,
            "cos": np.cos,
            "tan": np.tan,
            "sinh": np.sinh,
            "cosh": np.cosh,
            "tanh": np.tanh,
            "asin": np.arcsin,
            "acos": np.arccos,
            "atan": np.arctan,
            "asinh": np.arcsinh,
            "acosh": np.arccosh,
            "atanh": np.arctanh,
        }.items()
    },
}
"""Operator → its function of arrays and numbers."""
