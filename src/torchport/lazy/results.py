"""New tensors for an operator's results: in eager's layout, with eager's bits, packed as the schema says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.backend import Shape, Value
from torchport.ir.inference import flatten_result
from torchport.lazy import active
from torchport.lazy.recording import with_bits, write
from torchport.lazy.tensor import dense_shape, is_dense, new_strided, new_tensor
from torchport.lazy.write_probe import Stand

Bits = tuple[bool, bool]
"""Whether a tensor's memory holds the conjugates, the negatives of its elements."""
NO_BITS: Bits = (False, False)


def new_result(shape: Shape, value: Value, bits: Bits = NO_BITS) -> torch.Tensor:
    """A new tensor with this value, laid out as ``shape`` says even where that leaves gaps in the storage."""
    if (bits == NO_BITS and is_dense(shape)) or active.host_mode is not None:
        return new_tensor(dense_shape(shape), value)
    tensor = new_strided(shape.sizes, shape.strides, shape.dtype)
    set_bits(tensor, bits)
    write(tensor, with_bits(tensor, value))
    return tensor


def set_bits(tensor: torch.Tensor, bits: Bits) -> None:
    """Marks a tensor as holding the conjugates or negatives of its elements."""
    torch._C._set_conj(tensor, bits[0])
    torch._C._set_neg(tensor, bits[1])


def bits_of_results(
    op: OpOverload, outputs: Sequence[Shape | None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Bits, ...] | None:
    """The bits that eager's kernel leaves set on its results for such arguments; ``None`` where there are none.

    Some kernels compute the conjugate, when that saves the copy of an operand, and set the result's bit.
    """
    if active.host_mode is not None or not any(s is not None and s.is_complex for s in outputs):
        return None
    convert = Stand("cpu", benign=True).convert
    keywords = {k: torch.device("cpu") if k == "device" else convert(v) for k, v in kwargs.items()}
    state = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in op.tags else None
    try:
        with torch._C._AutoDispatchBelowAutograd():
            found = flatten_result(op(*[convert(a) for a in args], **keywords))
    except Exception:  # noqa: BLE001 - benign values may not be good enough: then none is assumed
        return None
    finally:
        if state is not None:
            torch.set_rng_state(state)
    bits = tuple((t.is_conj(), t.is_neg()) if isinstance(t, torch.Tensor) else NO_BITS for t in found)
    return bits if any(b != NO_BITS for b in bits) else None


def pack_results(returns: tuple[str, ...], flat: list[Any]) -> Any:
    """An operator's result from its flat outputs: a tensor, a list, or a tuple of both."""
    lists = returns.count("tensors")
    if not lists:
        return flat[0] if len(returns) == 1 else tuple(flat)
    if lists > 1:
        # Only foreach-like operators return several lists, and those are of one length.
        length = (len(flat) - (len(returns) - lists)) // lists
    else:
        length = len(flat) - (len(returns) - 1)
    packed, at = [], 0
    for kind in returns:
        if kind == "tensors":
            packed.append(flat[at : at + length])
            at += length
        else:
            packed.append(flat[at])
            at += 1
    return packed[0] if len(packed) == 1 else tuple(packed)
