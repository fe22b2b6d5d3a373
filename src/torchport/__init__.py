"""torchport plugs any compiler into PyTorch, in Python.

Importing it registers the device ``"port"`` with torch. Operations on tensors of that device are deferred, traced into
a graph, and compiled and executed by the active backend at a barrier, or when a value is read::

    import torch, torchport

    model = model.to("port")
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_function(model(x.to("port")), y.to("port"))
        loss.backward()
        optimizer.step()          # a barrier: the step is one graph

The names below are the public ones.
"""

from importlib import import_module

from torchport import backends, debug, errors, metrics
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.function import Function, GraphFunction, as_graph_function, try_as_graph_function
from torchport.aot.lowered_module import LoweredModule
from torchport.aot.restoring import load
from torchport.backend import (
    Availability,
    BackendData,
    BackendDevice,
    BackendDeviceType,
    BackendImplInterface,
    BackendRegistrar,
    Capabilities,
    Computation,
    IrBuilder,
    LazyTensor,
    LoweringContext,
    Node,
    NullBackend,
    PyTorchBackendInterface,
    RecordingBackend,
    Shape,
    Support,
    SyncCause,
    Value,
    get_backend,
    get_ir_builder,
    has_backend,
    register_backend,
)
from torchport.config import settings
from torchport.debug import explain
from torchport.errors import (
    BackendError,
    BackendNotAvailableError,
    BackendOptionError,
    BackendRegistrationError,
    CaptureError,
    CompileSpecError,
    DamagedFileError,
    DeviceUnavailableError,
    ExecutionError,
    ExpectedFailuresError,
    FormatVersionError,
    InvalidArgumentError,
    IRSyntaxError,
    NoActiveBackendError,
    SavedFileError,
    SettingError,
    StrictModeError,
    TargetMismatchError,
    TorchportError,
    UnknownBackendError,
    UnsupportedNodesError,
    UnsupportedOperationError,
)
from torchport.lazy.capture import capture
from torchport.lazy.eager import executed_fallback_ops
from torchport.lazy.mode import lazy_mode
from torchport.lazy.rng import manual_seed
from torchport.lazy.setup import set_up as _set_up
from torchport.lazy.strict import set_strict
from torchport.lazy.switch import use
from torchport.lazy.sync import sync
from torchport.runtime.execution import wait_device_ops

__version__ = "0.1.0"

mark_step = sync
"""The barrier by the name that PyTorch's lazy core and PyTorch/XLA give it."""

_set_up()


_LATE = {
    "CompilerBackend": "torchport.backend.compiler",
    "CompilerInput": "torchport.backend.compiler",
    "to_backend": "torchport.aot.to_backend",
}


def __getattr__(name: str) -> object:
    """What needs torch's tracers and exporters, at its first use: they take longer to import than all of torchport."""
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'torchport' has no attribute {name!r}")


__all__ = [
    "Availability",
    "BackendData",
    "BackendDevice",
    "BackendDeviceType",
    "BackendError",
    "BackendImplInterface",
    "BackendNotAvailableError",
    "BackendOptionError",
    "BackendRegistrar",
    "BackendRegistrationError",
    "Capabilities",
    "CaptureError",
    "CompileSpec",
    "CompileSpecError",
    "CompilerBackend",
    "CompilerInput",
    "Computation",
    "DamagedFileError",
    "DeviceUnavailableError",
    "ExecutionError",
    "ExpectedFailuresError",
    "FormatVersionError",
    "Function",
    "GraphFunction",
    "IRSyntaxError",
    "InvalidArgumentError",
    "IrBuilder",
    "LazyTensor",
    "LoweredModule",
    "LoweringContext",
    "NoActiveBackendError",
    "Node",
    "NullBackend",
    "PyTorchBackendInterface",
    "RecordingBackend",
    "SavedFileError",
    "SettingError",
    "Shape",
    "StrictModeError",
    "Support",
    "SyncCause",
    "TargetMismatchError",
    "TorchportError",
    "UnknownBackendError",
    "UnsupportedNodesError",
    "UnsupportedOperationError",
    "Value",
    "as_graph_function",
    "backends",
    "capture",
    "debug",
    "errors",
    "executed_fallback_ops",
    "explain",
    "get_backend",
    "get_ir_builder",
    "has_backend",
    "lazy_mode",
    "load",
    "manual_seed",
    "mark_step",
    "metrics",
    "register_backend",
    "set_strict",
    "settings",
    "sync",
    "to_backend",
    "try_as_graph_function",
    "use",
    "wait_device_ops",
]
