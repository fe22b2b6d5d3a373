"""What eager PyTorch refuses of a write and a functional form does not: cells that overlap, dtypes that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from torchport.ir.inference import SIZES_IN_VALUES, has_mask, is_missing_kernel
from torchport.lazy.reading import view_of_storage
from torchport.lazy.recording import layout_of

_PROBE_LIMIT_BYTES = 1 << 24


def check_writes(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Runs an operator that writes on host tensors laid out like its own, each storage made once.

    Raises:
        Exception: eager's own.
    """
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    # Where sizes must fit the values, such as the cells that a mask selects, only the meta kernel can tell.
    only_meta = has_mask(op, args) or op._schema.name.startswith(SIZES_IN_VALUES)
    small = sum(t.untyped_storage().nbytes() for t in tensors) <= _PROBE_LIMIT_BYTES
    device = "cpu" if small and not only_meta else "meta"
    state = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in op.tags else None
    try:
        _run_on_host(op, args, kwargs, device)
    except NotImplementedError as error:
        if device == "cpu" and not is_missing_kernel(error):
            raise
    except torch.linalg.LinAlgError:
        pass  # A matrix of zeros has no inverse; what is written to was looked at before.
    except Exception as error:
        if device == "meta":
            raise
        # Zeros can be the wrong values: as a divisor, say.
        try:
            _run_on_host(op, args, kwargs, device, ones=True)
        except Exception:  # noqa: BLE001 - the same error, or another: the first one stands
            raise error from None
    finally:
        if state is not None:
            torch.set_rng_state(state)


def _run_on_host(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], device: str, ones: bool = False
) -> None:
    """Runs an operator on storages of zeros, or of bytes of one."""
    storages: dict[int, torch.Tensor] = {}

    def convert(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            storage = x.untyped_storage()
            flat = storages.get(storage._cdata)
            if flat is None:
                flat = torch.full((storage.nbytes(),), int(ones), dtype=torch.uint8, device=device)
                storages[storage._cdata] = flat
            return view_of_storage(flat, layout_of(x))
        return [convert(y) for y in x] if isinstance(x, (list, tuple)) else x

    with torch._C._AutoDispatchBelowAutograd():
        op(*[convert(a) for a in args], **{k: convert(v) for k, v in kwargs.items()})


def may_overlap(target: Any, args: tuple[Any, ...]) -> bool:
    """Whether a written tensor has cells in common with itself or, in another layout, with an operand."""
    if not isinstance(target, torch.Tensor):
        return False
    if is_expanded(target):
        return True
    storage = target.untyped_storage()
    for a in args:
        if (
            isinstance(a, torch.Tensor)
            and a is not target
            and a.untyped_storage() is storage
            and a.numel()
            and target.numel()
            and (
                a.storage_offset() != target.storage_offset()
                or a.stride() != target.stride()
                or a.shape != target.shape
            )
        ):
            return True
    return False


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether a stride of zero makes cells one in memory."""
    return 0 in tensor.stride() and any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def share_storages(targets: list[Sequence[torch.Tensor]], args: tuple[Any, ...]) -> bool:
    """Whether an operator on lists reads or writes what it writes elsewhere, so that the order of its elements matters.

    An element's own operand may be the element itself.
    """
    written = [t for target in targets for t in target]
    storages = {t.untyped_storage()._cdata for t in written}
    if len(storages) < len(written):
        return True
    for a in args:
        if isinstance(a, torch.Tensor):
            if a.untyped_storage()._cdata in storages:
                return True
        elif isinstance(a, (list, tuple)) and not any(a is target for target in targets):
            for i, t in enumerate(a):
                if (
                    isinstance(t, torch.Tensor)
                    and t.untyped_storage()._cdata in storages
                    and t is not written[i % len(written)]
                ):
                    return True
    return False
