"""Shapes of an operator's results, found by running it on meta tensors, or on CPU tensors where that says more.

This runs once per distinct call: the result is memoised in the :class:`~torchport.ir.call.Call` that it leads to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from torchport.ir.call import Number, Operand
from torchport.ir.shape import Shape

_PROBE_LIMIT_BYTES = 1 << 30
"""A probe on the CPU allocates its operands; above this it is not tried and the meta kernel's error stands."""

_PROBED_FIRST = frozenset(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _fft_c2c _fft_c2r _fft_r2c linalg_eig _linalg_eigh _linalg_svd _linalg_det linalg_lu_factor_ex linalg_inv_ex
    """.split()
)
"""Operators whose meta kernels describe another device's results: other sizes of saved statistics, other strides."""


class DynamicOutput(Exception):
    """The sizes of the result depend on values: the operator cannot be deferred past the next one.

    Attributes:
        outputs: the shapes of the results with every size symbolic; the sizes themselves mean nothing.
    """

    def __init__(self, outputs: tuple[Shape | None, ...]) -> None:
        super().__init__("the output sizes depend on values")
        self.outputs = outputs


def _has_mask(op: OpOverload, inputs: tuple[Shape, ...], args: tuple[Any, ...]) -> bool:
    indices = args[1] if len(args) > 1 else ()
    return any(type(i) is Operand and inputs[i.index].dtype in (torch.bool, torch.uint8) for i in indices)


def is_dynamic(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: tuple[Shape, ...]) -> bool:
    """Whether the sizes of the result depend on the values of the operands."""
    if torch.Tag.dynamic_output_shape not in op.tags:
        return False
    name = op._schema.name
    if name in ("aten::index", "aten::_unsafe_index"):
        return _has_mask(op, inputs, args)
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    return True


def infer(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: tuple[Shape, ...],
    numbers: list[Any],
) -> tuple[Shape | None, ...]:
    """The shapes of the results, flattened; ``None`` for a result that is no tensor.

    Args:
        op: the overload.
        args: positional arguments, with :class:`Operand` and :class:`Number` in place of tensors and numbers.
        kwargs: keyword arguments, likewise.
        inputs: the shapes of the operands, in order.
        numbers: the values of the numbers, in order.

    Raises:
        DynamicOutput: the sizes depend on values.
        Exception: whatever eager PyTorch raises for these arguments, with its text.
    """
    if is_dynamic(op, args, kwargs, inputs):
        found = _run(op, args, kwargs, inputs, numbers, "cpu")
        raise DynamicOutput(
            tuple(None if s is None else Shape(s.dtype, s.sizes, s.strides, (True,) * len(s.sizes)) for s in found)
        )
    first = "cpu" if op._opname in _PROBED_FIRST else "meta"
    try:
        return _run(op, args, kwargs, inputs, numbers, first)
    except Exception as meta_error:
        # Meta kernels are missing for some operators, and where they raise their text is not always eager's: what a
        # CPU kernel says of operands of these shapes decides.
        if first == "cpu" or sum(s.nbytes for s in inputs) > _PROBE_LIMIT_BYTES:
            raise
        try:
            return _run(op, args, kwargs, inputs, numbers, "cpu")
        except NotImplementedError:
            raise meta_error from None


def _run(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: tuple[Shape, ...],
    numbers: list[Any],
    device: str,
) -> tuple[Shape | None, ...]:
    if device == "meta":
        tensors = [torch.empty_strided(s.sizes, s.strides, dtype=s.dtype, device=device) for s in inputs]
    else:
        tensors = []
        for s in inputs:
            t = torch.zeros(s.storage_numel, dtype=s.dtype).as_strided(s.sizes, s.strides)
            tensors.append(t)

    def fill(x: Any) -> Any:
        if type(x) is Operand:
            return tensors[x.index]
        if type(x) is Number:
            return numbers[x.index]
        if type(x) is tuple:
            return [fill(y) for y in x]
        return x

    keywords = {k: fill(v) for k, v in kwargs.items()}
    if any(a.name == "device" for a in op._schema.arguments):
        keywords["device"] = device
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableTorchDispatch():
        if device == "cpu" and torch.Tag.nondeterministic_seeded in op.tags:
            state = torch.get_rng_state()
            try:
                result = op(*[fill(a) for a in args], **keywords)
            finally:
                torch.set_rng_state(state)
        else:
            result = op(*[fill(a) for a in args], **keywords)
    return tuple(shape_of(t) if isinstance(t, torch.Tensor) else None for t in flatten_result(result))


def shape_of(tensor: torch.Tensor) -> Shape:
    """The shape of a tensor."""
    return Shape(tensor.dtype, tuple(tensor.shape), tensor.stride())


def flatten_result(result: Any) -> list[Any]:
    """An operator's result as a flat list, in the order of ``Call.outputs``."""
    if isinstance(result, (tuple, list)):
        return [x for r in result for x in flatten_result(r)]
    return [result]
