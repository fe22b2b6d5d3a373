"""Reading values: from a lazy tensor to its data, and from data to host tensors."""

from __future__ import annotations

import torch

from torchport import metrics
from torchport.backend import BackendData, LazyTensor, Shape, SyncCause, Value
from torchport.config import settings
from torchport.errors import StrictModeError
from torchport.ir.graph import Graph
from torchport.lazy import active
from torchport.lazy.compilation import run_graph
from torchport.lazy.source import user_location
from torchport.lazy.sync import launch
from torchport.lazy.trace import LOCK
from torchport.runtime.events import EventKind, record_event
from torchport.runtime.execution import Execution, executor, raise_once

_IMPLICIT_SYNC = metrics.counter("ImplicitSync")


def data_of(tensor: LazyTensor, cause: SyncCause = SyncCause.READ) -> BackendData:
    """The tensor's contents on the device, computed and waited for.

    Raises:
        ExecutionError: the computation that they depend on failed.
        StrictModeError: strict mode forbids an implicit sync, and the contents are pending.
    """
    with LOCK:
        if active.recorder is not None:
            active.recorder.read()
        if tensor.value is None:
            write_unwritten(tensor)
        if tensor.data is None:
            location = user_location()
            if cause is SyncCause.READ:
                if settings.strict_implicit_sync:
                    raise StrictModeError(
                        f"{tensor.shape!r} is read at {location} while it is pending, which strict mode forbids. "
                        "Call torchport.sync() before it, or read it outside of the loop."
                    )
                _IMPLICIT_SYNC.value += 1
                record_event(EventKind.READ, "a pending value was read", location)
            wanted = tensor.value.node if tensor.value is not None else None
            launch(cause, location, soon_read=True, own=cause is SyncCause.READ, wanted=wanted)
        if tensor.data is None:
            # The backend does not want it materialised at a barrier; whoever reads it needs it all the same.
            _launch_alone(tensor)
        data = tensor.data
    assert data is not None
    pending = data.info
    if isinstance(pending, Execution):
        executor.wait(pending)
    if data.error is not None:
        raise_once(data.error)
    return data


def _launch_alone(tensor: LazyTensor) -> None:
    assert tensor.value is not None
    backend = active.backend()
    device = active.backend_device()
    graph = Graph.of_results([tensor.value])
    data = run_graph(graph, backend, device)[0]
    active.trace.write(tensor, Value(backend.get_ir_builder().make_device_data(data)))


def write_unwritten(tensor: LazyTensor) -> None:
    """Contents for memory that was never written: zeros, which are as good as any and the same every time."""
    call = active.zeros_call(tensor.shape)
    node = active.trace.add(active.builder(), call, ())
    active.trace.write(tensor, Value(node))


def host_tensor(tensor: torch.Tensor, lazy: LazyTensor, cause: SyncCause = SyncCause.READ) -> torch.Tensor:
    """A CPU tensor with the values, sizes and strides of one on the lazy device; the caller's own."""
    layout = (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)
    shape = lazy.shape
    whole = layout == (shape.sizes, shape.strides, 0, shape.dtype)
    if active.recorder is not None:
        active.recorder.read()
    if lazy.host is None or whole:
        base = active.backend().make_tensor_from_computation_data(data_of(lazy, cause))
        base = with_strides(base, shape)
        if whole:
            return base
        lazy.host = base
    return view_of_storage(lazy.host, layout).clone()


def view_of_storage(
    base: torch.Tensor, layout: tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]
) -> torch.Tensor:
    """The view of ``base``'s storage that a layout describes."""
    sizes, strides, offset, dtype = layout
    return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), offset, sizes, strides)


def with_strides(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The tensor itself where its memory is laid out as ``shape`` says, from offset 0; else a copy that is."""
    if (
        tensor.stride() == shape.strides
        and tensor.storage_offset() == 0
        and (tensor.untyped_storage().nbytes() == shape.storage_numel * shape.dtype.itemsize)
    ):
        return tensor
    return torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype, device=tensor.device).copy_(tensor)
