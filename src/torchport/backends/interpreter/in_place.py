"""The in-place twin of an elementwise operator: which overload writes the same values into its first operand."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from torchport.backends.interpreter.randomness import fill_overload, matching_overload

_ELEMENTWISE = """
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil
    clamp clamp_max clamp_min copysign cos cosh deg2rad div elu erf erfc erfinv exp exp2 expm1 fill floor fmod frac gelu
    hardsigmoid hardswish hardtanh hypot leaky_relu lerp log log10 log1p log2 logical_and logical_not logical_or
    logical_xor masked_fill mish mul nan_to_num neg pow rad2deg reciprocal relu remainder round rsqrt sgn sigmoid sign
    silu sin sinh sqrt sub tan tanh threshold tril triu trunc xlogy
"""
"""Operators whose every output element depends on the same element of the first operand alone, and that have a twin.

``tril`` and ``triu`` only keep or clear an element; the others compute it.
"""

_ELEMENTWISE_NAMES = frozenset(_ELEMENTWISE.split())
_RENAMED = {"aten::pow.Tensor_Scalar": "pow_", "aten::pow.Tensor_Tensor": "pow_"}
_ROUNDING_TWIN = frozenset({"aten::mul.Scalar", "aten::_foreach_mul.Scalar", "aten::_foreach_mul.ScalarList"})
"""Operators whose in-place form first rounds the number to a tensor's dtype of half precision: it swaps the factors
(at::native::mul__scalar_method), and the kernel computes with the precise number where that is the second."""


def twin(op: OpOverload, dtype: torch.dtype | None = None) -> OpOverload | None:
    """The overload that computes the same into the operator's first argument, by the same arguments; or ``None``.

    The first argument is a tensor of ``dtype``, or (of a ``_foreach`` operator) a list of them.
    """
    if op._name in _ROUNDING_TWIN and dtype in (torch.float16, torch.bfloat16):
        return None
    fill = fill_overload(op)
    if fill is not None:
        return fill
    name = op._schema.name.partition("::")[2]
    if op.namespace != "aten" or name.removeprefix("_foreach_") not in _ELEMENTWISE_NAMES:
        return None
    packet = getattr(torch.ops.aten, _RENAMED.get(op._name, f"{name}_"), None)
    found = None if packet is None else matching_overload(op, packet)
    if found is None or len(op._schema.returns) != 1:
        return None
    written = found._schema.arguments[0].alias_info
    return found if written is not None and written.is_write else None
