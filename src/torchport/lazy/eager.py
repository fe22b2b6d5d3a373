"""Running an operator eagerly, on the device that the backend names for it: the fallback.

Storages are copied to the host once each, however many arguments view them, so aliasing and in-place semantics hold;
what the operator wrote is copied back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from torchport import metrics
from torchport.backend import LazyTensor, Shape, SyncCause
from torchport.config import settings
from torchport.errors import StrictModeError
from torchport.ir.location import Location
from torchport.lazy import active
from torchport.lazy.reading import data_of, view_of_storage, with_strides
from torchport.lazy.recording import layout_of, upload
from torchport.lazy.schema import undefaulted
from torchport.lazy.source import user_location
from torchport.lazy.sparse_transfer import to_device
from torchport.lazy.sync import launch
from torchport.lazy.tensor import dense_shape, lazy_tensor_of, new_tensor
from torchport.runtime.events import EventKind, record_event

aten = torch.ops.aten
_fallbacks: dict[str, int] = {}


def executed_fallback_ops() -> dict[str, int]:
    """How often each operator ran eagerly because the backend could not run it: ``{"aten::op": count}``."""
    return dict(_fallbacks)


def clear_fallback_ops() -> None:
    """Forgets them."""
    _fallbacks.clear()


def launch_operands(name: str) -> None:
    """Launches what is pending because an operator that cannot be deferred needs its operands."""
    location = user_location()
    if active.trace.operations:
        if settings.strict_implicit_sync:
            raise StrictModeError(
                f"aten::{name} at {location} needs pending values, since the sizes of its result depend on them: "
                "strict mode forbids that. Call torchport.sync() before it, or use an operator of static sizes."
            )
        record_event(EventKind.UNDEFERRED, f"aten::{name} cannot be deferred", location)
        launch(SyncCause.EAGER, location, soon_read=True)


def note_fallback(name: str, reason: str, location: Location) -> None:
    """Counts a fallback, or refuses it.

    Raises:
        StrictModeError: strict mode forbids fallbacks.
    """
    if settings.strict_fallback:
        raise StrictModeError(f"{name} at {location} would run eagerly, which strict mode forbids: {reason}")
    metrics.increment(name)
    _fallbacks[name] = _fallbacks.get(name, 0) + 1
    record_event(EventKind.FALLBACK, f"{name}: {reason}", location)


def run(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str, count: bool = True) -> Any:
    """Runs ``op`` on copies of the contents, writes back what it wrote, and returns results on the lazy device.

    Args:
        op: the overload.
        args: positional arguments of the kernel.
        kwargs: keyword arguments of the kernel.
        reason: why it is not deferred.
        count: whether it counts as a fallback (drawing from a generator that the user passed does not).

    Raises:
        StrictModeError: it counts, and strict mode forbids fallbacks.
    """
    if active.host_mode is not None:
        raise active.NotDeferred
    name = op._schema.name + (f".{op._overloadname}" if op._overloadname != "default" else "")
    location = user_location()
    if count:
        note_fallback(name, reason, location)
    else:
        metrics.increment(f"lazy::{op._schema.name.removeprefix('aten::')}")
    launch(SyncCause.EAGER, location, soon_read=True)
    device = torch.device(active.backend().eager_fallback_device_type().name.lower())
    host = _HostArguments(device)
    host_args = [host.convert(a) for a in args]
    host_kwargs = {**dict.fromkeys(undefaulted(op)), **{k: host.convert(v) for k, v in kwargs.items()}}
    with torch._C._AutoDispatchBelowAutograd(), _device_generator(op):
        result = op(*host_args, **host_kwargs)
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            moved = host_args[i] if i < len(args) else host_kwargs.get(argument.name)
            host.write_back(given, moved)
    return host.results(result)


@contextlib.contextmanager
def _device_generator(op: OpOverload) -> Iterator[None]:
    """Lets a random operator on the host draw from the device's generator, so that the stream goes on."""
    backend = active.backend()
    if torch.Tag.nondeterministic_seeded not in op.tags or not backend.capabilities.random_state:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(backend.get_rng_state())
    try:
        yield
        backend.set_rng_state(torch.get_rng_state())
    finally:
        torch.set_rng_state(before)


class _HostArguments:
    """Copies of a call's tensors, which alias each other where the originals do."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bases: dict[int, torch.Tensor] = {}
        self.originals: dict[int, torch.Tensor] = {}
        self.tensors: list[torch.Tensor] = []

    def convert(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self._convert_tensor(x) if x.device.type == active.device_type else x
        if isinstance(x, (list, tuple)):
            return type(x)(self.convert(y) for y in x)
        if isinstance(x, torch.device) and x.type == active.device_type:
            return self.device
        return x

    def _convert_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        lazy = lazy_tensor_of(tensor)
        base = self.bases.get(id(lazy))
        if base is None:
            base = active.backend().make_tensor_from_computation_data(data_of(lazy, SyncCause.EAGER))
            base = with_strides(base, lazy.shape).to(self.device)
            self.bases[id(lazy)] = base
        moved = view_of_storage(base, layout_of(tensor))
        if tensor.is_conj():
            moved = torch._conj(moved)
        if tensor.is_neg():
            moved = torch._neg_view(moved)
        self.originals[id(moved)] = tensor
        self.tensors.append(moved)  # keeps the id taken
        return moved

    def write_back(self, given: Any, moved: Any) -> None:
        if isinstance(given, (list, tuple)):
            for g, m in zip(given, moved, strict=True):
                self.write_back(g, m)
            return
        if given is None or given.device.type != active.device_type:
            return
        if given.shape != moved.shape or given.stride() != moved.stride():
            # Resized, perhaps into another layout: the whole storage is taken over.
            storage = moved.untyped_storage()
            flat = torch.empty(0, dtype=moved.dtype, device=moved.device).set_(storage)
            value, shape = upload(flat.cpu(), Shape(flat.dtype, tuple(flat.shape)))
            grown = new_tensor(shape, value).untyped_storage()
            aten.set_.source_Storage_storage_offset(
                given, grown, moved.storage_offset(), list(moved.shape), list(moved.stride())
            )
            return
        lazy: LazyTensor = lazy_tensor_of(given)
        shape = lazy.shape
        whole = view_of_storage(moved, (shape.sizes, shape.strides, 0, shape.dtype))
        value, _ = upload(whole.cpu(), shape)
        active.trace.write(lazy, value)

    def results(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            original = self.originals.get(id(result))
            if original is not None:
                return original
            if result.device.type == "meta":
                return result
            if result.layout is not torch.strided:
                return to_device(result.cpu())
            value, shape = upload(result.cpu(), dense_shape(Shape(result.dtype, tuple(result.shape), result.stride())))
            return new_tensor(shape, value)
        if isinstance(result, (list, tuple)):
            return type(result)(self.results(r) for r in result)
        return result
