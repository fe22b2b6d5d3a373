"""What eager PyTorch does to the tensors that an operator writes: whether it takes them, and how it leaves them.

The functional form, which is traced, knows nothing of ``out=``: so the operator itself runs once per distinct call, on
host tensors laid out like its own.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchport.ir.inference import fill_benignly, has_mask, is_missing_kernel
from torchport.lazy.reading import view_of_storage
from torchport.lazy.recording import layout_of
from torchport.lazy.schema import Operator

_PROBE_LIMIT_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Layout:
    """How eager leaves a tensor that was given as ``out=``."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    bits: tuple[bool, bool]


def probe_writes(info: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Layout]:
    """Runs an operator that writes on host tensors laid out like its own; returns how it leaves those of ``out=``.

    It raises what the functional form does not: a dtype or a size that does not fit, cells that overlap.

    Returns:
        By name; nothing where only running it on the values could tell.

    Raises:
        Exception: eager's own.
    """
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    outs = [m.name for m in info.mutations if m.is_out and not m.is_list]
    # The cells that a mask selects depend on its values; there only the meta kernel can tell.
    masked = not outs and has_mask(info.op, args)
    small = sum(t.untyped_storage().nbytes() for t in tensors) <= _PROBE_LIMIT_BYTES
    try:
        if masked or not small:
            _run(info, args, kwargs, "meta")
            return {}
        found = _run(info, args, kwargs, "cpu")
    except NotImplementedError as error:
        if not is_missing_kernel(error):
            raise
        return {}  # no kernel: what the functional form accepts is accepted
    except Exception as error:
        if masked or not small:
            raise
        try:
            # Zeros can be the wrong values for an operator that is right for these tensors: a divisor, a matrix.
            found = _run(info, args, kwargs, "cpu", benign=True)
        except Exception:  # noqa: BLE001 - the same error, or another
            if outs and not _functional_runs(info, args, kwargs):
                return {}
            raise error from None
    return {
        name: Layout(tuple(t.shape), t.stride(), (t.is_conj(), t.is_neg()))
        for name, t in found.items()
        if name in outs and t is not None
    }


def _run(
    info: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], device: str, benign: bool = False
) -> dict[str, Any]:
    op = info.op
    convert = Stand(device, benign).convert
    positional, keywords = [convert(a) for a in args], {k: convert(v) for k, v in kwargs.items()}
    state = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in op.tags else None
    try:
        with torch._C._AutoDispatchBelowAutograd(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the real call warns
            op(*positional, **keywords)
    finally:
        if state is not None:
            torch.set_rng_state(state)
    return keywords


def _functional_runs(info: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the functional form takes values as the probe's, so that an error of the probe is about ``out=``."""
    assert info.functional is not None
    convert = Stand("cpu", benign=True).convert
    names = {m.name for m in info.mutations}
    try:
        with torch._C._AutoDispatchBelowAutograd():
            info.functional(*[convert(a) for a in args], **{k: convert(v) for k, v in kwargs.items() if k not in names})
    except Exception:  # noqa: BLE001 - it is the answer
        return False
    return True


class Stand:
    """Tensors that stand for a call's own: as they are laid out and share storages, with other values."""

    def __init__(self, device: str, benign: bool) -> None:
        self.device, self.benign = device, benign
        self.storages: dict[int, torch.Tensor] = {}
        # One tensor given twice is one tensor here: eager asks whether ``out`` is an operand itself.
        self._made: dict[int, torch.Tensor] = {}

    def convert(self, x: Any) -> Any:
        """The argument with its tensors replaced."""
        if not isinstance(x, torch.Tensor):
            return [self.convert(y) for y in x] if isinstance(x, (list, tuple)) else x
        made = self._made.get(id(x))
        if made is None:
            made = self._made[id(x)] = self._convert(x)
        return made

    def _convert(self, x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        flat = self.storages.get(storage._cdata)
        if flat is None:
            flat = torch.zeros(storage.nbytes(), dtype=torch.uint8, device=self.device)
            self.storages[storage._cdata] = flat
        stand = view_of_storage(flat, layout_of(x))
        if self.benign:
            fill_benignly(stand)
        if x.is_conj():
            stand = torch._conj(stand)
        return torch._neg_view(stand) if x.is_neg() else stand


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor are one in memory because of a stride of zero, which eager does not write to."""
    return (
        0 in tensor.stride()
        and tensor.numel() > 0
        and any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    )


def is_aliased(args: tuple[Any, ...], target: Any) -> bool:
    """Whether eager may refuse the write because of another operand in the written tensor's storage.

    That is one in another layout, or an index: of those none may overlap what is written.
    """
    if not isinstance(target, torch.Tensor) or not target.numel():
        return False
    storage = target.untyped_storage()
    for a in args:
        if isinstance(a, torch.Tensor):
            if a is not target and a.untyped_storage() is storage and a.numel() and layout_of(a) != layout_of(target):
                return True
        elif isinstance(a, (list, tuple)) and any(
            isinstance(t, torch.Tensor) and t.numel() and t.untyped_storage() is storage for t in a
        ):
            return True
    return False
