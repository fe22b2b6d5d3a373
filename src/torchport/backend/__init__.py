"""The contract between torchport and those who execute its graphs, and the registry of those who keep it."""

from __future__ import annotations

from torchport.backend.availability import Availability
from torchport.backend.capabilities import Capabilities, Support
from torchport.backend.computation import Computation, SyncCause
from torchport.backend.data import DONATED, BackendData
from torchport.backend.delegate import DelegatedModule, PyTorchBackendInterface
from torchport.backend.device import BackendDevice, BackendDeviceType
from torchport.backend.interface import BackendImplInterface
from torchport.backend.lazy_tensor import LazyTensor
from torchport.backend.lowering_context import LoweringContext
from torchport.backend.null import NullBackend
from torchport.backend.recording import RecordedCall, RecordingBackend
from torchport.backend.registering import BackendRegistrar, backends, register_backend
from torchport.backend.registry import (
    BackendRegistry,
    activate,
    default_registry,
    get_backend,
    get_ir_builder,
    has_backend,
)
from torchport.ir.builder import IrBuilder
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape

__all__ = [
    "DONATED",
    "Availability",
    "BackendData",
    "BackendDevice",
    "BackendDeviceType",
    "BackendImplInterface",
    "BackendRegistrar",
    "BackendRegistry",
    "Capabilities",
    "Computation",
    "DelegatedModule",
    "IrBuilder",
    "LazyTensor",
    "LoweringContext",
    "Node",
    "NullBackend",
    "PyTorchBackendInterface",
    "RecordedCall",
    "RecordingBackend",
    "Shape",
    "Support",
    "SyncCause",
    "Value",
    "activate",
    "backends",
    "default_registry",
    "get_backend",
    "get_ir_builder",
    "has_backend",
    "register_backend",
]
