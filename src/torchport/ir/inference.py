"""Shapes of an operator's results, found by running it on meta tensors, or on CPU tensors where that says more.

This runs once per distinct call: the result is memoised in the :class:`~torchport.ir.call.Call` that it leads to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.ir.call import Operand, fill_template
from torchport.ir.shape import Shape

_PROBE_LIMIT_BYTES = 1 << 24
"""A probe on the CPU allocates operands and results; above this what the meta kernel says stands."""


SIZES_IN_VALUES = ("aten::segment_reduce", "aten::_segment")
"""Operators with an operand whose values must fit the sizes of another one."""
_VALUES_MATTER = ("aten::linalg_", "aten::_linalg_", "aten::cholesky", "aten::_cholesky", *SIZES_IN_VALUES)
"""Operators that refuse values that neither zeros nor ones are: what their meta kernel says of the shapes stands."""


class DynamicOutput(Exception):  # noqa: N818 - a signal, not an error
    """The sizes of the result depend on values: the operator cannot be deferred past the next one.

    Attributes:
        outputs: the shapes of the results with every size symbolic; the sizes themselves mean nothing.
    """

    def __init__(self, outputs: tuple[Shape | None, ...]) -> None:
        super().__init__("the output sizes depend on values")
        self.outputs = outputs


_INDEXES = ("aten::index.", "aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index")


def has_mask(op: OpOverload, args: Sequence[Any], inputs: tuple[Shape, ...] = ()) -> bool:
    """Whether a mask stands among the indices of an operator: what it selects depends on its values.

    Args:
        op: the overload.
        args: positional arguments, tensors or :class:`Operand`.
        inputs: the shapes of the operands.
    """
    if not f"{op._schema.name}.".startswith(_INDEXES) or len(args) < 2:
        return False
    tensors = [inputs[i.index] if type(i) is Operand else i for i in args[1] if i is not None]
    return any(t.dtype in (torch.bool, torch.uint8) for t in tensors)


def is_missing_kernel(error: NotImplementedError) -> bool:
    """Whether the dispatcher found no kernel; else a kernel says that it does not do this, for a dtype say."""
    return str(error).startswith("Could not run")


def is_dynamic(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: tuple[Shape, ...]) -> bool:
    """Whether the sizes of the result depend on the values of the operands."""
    if torch.Tag.dynamic_output_shape not in op.tags:
        return False
    name = op._schema.name
    if name in ("aten::index", "aten::_unsafe_index"):
        return has_mask(op, args, inputs)
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    return True


def infer(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: tuple[Shape, ...],
    numbers: list[Any],
    bits: tuple[tuple[bool, bool], ...] = (),
) -> tuple[Shape | None, ...]:
    """The shapes of the results, flattened; ``None`` for a result that is no tensor.

    Args:
        op: the overload.
        args: positional arguments, with :class:`Operand` and :class:`Number` in place of tensors and numbers.
        kwargs: keyword arguments, likewise.
        inputs: the shapes of the operands, in order.
        numbers: the values of the numbers, in order.
        bits: for each operand, whether its memory holds conjugates, and negatives: some kernels lay their result out by
            that. By default none does.

    Raises:
        DynamicOutput: the sizes depend on values.
        Exception: whatever eager PyTorch raises for these arguments, with its text.
    """
    if is_dynamic(op, args, kwargs, inputs):
        found = _run(op, args, kwargs, inputs, numbers, "cpu", bits)
        raise DynamicOutput(
            tuple(None if s is None else Shape(s.dtype, s.sizes, s.strides, (True,) * len(s.sizes)) for s in found)
        )
    if op._schema.name == "aten::repeat_interleave" and kwargs.get("output_size") is not None:
        # Its kernels add up the repeats, which are values; the program has done that for us.
        return (Shape(inputs[0].dtype, (kwargs["output_size"],)),)
    meta_error: Exception | None = None
    shapes: tuple[Shape | None, ...] = ()
    try:
        shapes = _run(op, args, kwargs, inputs, numbers, "meta", bits)
    except Exception as error:  # noqa: BLE001 - an operator's own error: the CPU's kernel decides whether it stands
        meta_error = error
    needed = sum(s.storage_numel * s.dtype.itemsize for s in inputs) + sum(s.nbytes for s in shapes if s is not None)
    if op.namespace != "aten" or needed > _PROBE_LIMIT_BYTES:
        if meta_error is not None:
            raise meta_error
        return shapes
    try:
        return _run(op, args, kwargs, inputs, numbers, "cpu", bits)
    except NotImplementedError as cpu_error:
        if not is_missing_kernel(cpu_error):
            raise
        if meta_error is not None:
            raise meta_error from None
    except Exception as cpu_error:  # noqa: BLE001 - an operator's own error
        # Zeros can be the wrong values for an operator that is right for these shapes: an inverse, a distribution, a
        # mask.
        values_matter = op._schema.name.startswith(_VALUES_MATTER) or has_mask(op, args, inputs)
        try:
            return _run(op, args, kwargs, inputs, numbers, "cpu", bits, benign=True)
        except Exception:  # noqa: BLE001 - the same error, or another
            if meta_error is not None or not values_matter:
                raise cpu_error from None
    return shapes


def _run(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: tuple[Shape, ...],
    numbers: list[Any],
    device: str,
    bits: tuple[tuple[bool, bool], ...],
    benign: bool = False,
) -> tuple[Shape | None, ...]:
    if device == "meta":
        tensors = [torch.empty_strided(s.sizes, s.strides, dtype=s.dtype, device=device) for s in inputs]
    else:
        tensors = []
        for s in inputs:
            tensor = torch.zeros(s.storage_numel, dtype=s.dtype).as_strided(s.sizes, s.strides)
            if benign:
                fill_benignly(tensor)
            tensors.append(tensor)

    for i, (is_conj, is_neg) in enumerate(bits):
        tensors[i] = torch._conj(tensors[i]) if is_conj else tensors[i]
        tensors[i] = torch._neg_view(tensors[i]) if is_neg else tensors[i]
    positional = [fill_template(a, tensors, numbers) for a in args]
    keywords = {k: fill_template(v, tensors, numbers) for k, v in kwargs.items()}
    if any(a.name == "device" for a in op._schema.arguments):
        keywords["device"] = device
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableTorchDispatch():
        if device == "cpu" and torch.Tag.nondeterministic_seeded in op.tags:
            state = torch.get_rng_state()
            try:
                result = op(*positional, **keywords)
            finally:
                torch.set_rng_state(state)
        else:
            result = op(*positional, **keywords)
    return tuple(shape_of(t) if isinstance(t, torch.Tensor) else None for t in flatten_result(result))


def fill_benignly(tensor: torch.Tensor) -> None:
    """Gives zeros values that most operators take: an identity where there are matrices of floats, else ones."""
    is_matrix = tensor.dim() >= 2 and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    (tensor.diagonal(dim1=-2, dim2=-1) if is_matrix else tensor).fill_(1)


def shape_of(tensor: torch.Tensor) -> Shape:
    """The shape of a tensor."""
    return Shape(tensor.dtype, tuple(tensor.shape), tensor.stride())


def flatten_result(result: Any) -> list[Any]:
    """An operator's result as a flat list, in the order of ``Call.outputs``."""
    if isinstance(result, (tuple, list)):
        return [x for r in result for x in flatten_result(r)]
    return [result]
