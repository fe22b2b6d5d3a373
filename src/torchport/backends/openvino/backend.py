"""OpenVINO behind the contract: inference."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import fx

from torchport.backend import Availability, Capabilities, Support
from torchport.backend.compiler import CompilerBackend, CompilerInput, Executable
from torchport.backend.compiler.checking import check_results, operands_of, tensors_of
from torchport.backends.openvino.options import OpenvinoOptions
from torchport.backends.openvino.refusals import REFUSED
from torchport_runtime.openvino import CompiledModel, read_model

_NEEDED = ("openvino", "packaging")
_aten = torch.ops.aten
_MOVES = frozenset(
    {
        *(_aten._to_copy.default, _aten.alias.default, _aten.cat.default, _aten.clone.default, _aten.expand.default),
        *(_aten.flip.default, _aten.gather.default, _aten.index.Tensor, _aten.index_select.default),
        *(_aten.permute.default, _aten.repeat.default, _aten.select.int, _aten.slice.Tensor, _aten.squeeze.dim),
        *(_aten.split_with_sizes.default, _aten.unsqueeze.default, _aten.view.default, _aten.where.self),
        *(_aten.arange.start_step, _aten.full.default, _aten.scalar_tensor.default, _aten.argmax.default),
        *(_aten.max.dim, _aten.min.dim, _aten.sort.default, _aten.topk.default, _aten.argmin.default),
        *(_aten.max_pool2d_with_indices.default, _aten.constant_pad_nd.default),
    }
)
"""What makes no new integers, or only places within a tensor."""
_DTYPES = frozenset({torch.float32, torch.int32, torch.int64, torch.bool, torch.uint8, torch.int8, torch.float64})


@cache
def _converting() -> ModuleType:
    return import_module("torchport.backends.openvino.converting")


class OpenvinoBackend(CompilerBackend):
    """Converts graphs to OpenVINO's models and runs them on the CPU; files need no PyTorch on the target."""

    Options: ClassVar[type] = OpenvinoOptions
    capabilities = Capabilities(
        random=True,
        random_state=True,
        eager_random_stream=True,
        concurrent_execution=True,
        serialization=True,
    )

    @classmethod
    def availability(cls) -> Availability:
        """Whether OpenVINO is installed."""
        missing = []
        for name in _NEEDED:
            try:
                version(name)
            except PackageNotFoundError:
                missing.append(name)
        if missing:
            return Availability(False, f'{" and ".join(missing)} is not installed: pip install "torchport[openvino]"')
        return Availability(True, "", version("openvino"))

    def supports_operator(self, node: fx.Node) -> Support:
        """What the converter takes and gets right, in dtypes that the CPU plugin has."""
        if node.target is operator.getitem:
            return Support(True)
        reason = REFUSED.get(str(node.target))
        if reason is not None:
            return Support(False, reason)
        for value in tensors_of(node):
            if value.dtype not in _DTYPES:
                return Support(False, f"OpenVINO is not used for {value.dtype} here")
        narrowed = _narrowed(node)
        if narrowed:
            return Support(False, narrowed)
        if any(not value.numel() for value in operands_of(node)):
            return Support(False, "OpenVINO's CPU plugin is not used for tensors without elements")
        return Support(True)

    def compile_graph(self, program: CompilerInput) -> Executable:
        """The model of a graph, compiled for this machine.

        Raises:
            ValueError: its results are not those of PyTorch.
        """
        content = _converting().to_bytes(_converting().to_model(program))
        executable = Model(content, self.options.precision, self.options.threads or torch.get_num_threads())
        if self.options.precision == "f32":
            check_results(program, executable)
        return executable

    def serialize(self, executable: Executable) -> bytes:
        """The model."""
        assert isinstance(executable, Model)
        return executable.content

    def deserialize(self, payload: bytes | memoryview) -> Executable:
        """A model, compiled."""
        return Model(bytes(payload), self.options.precision, self.options.threads or torch.get_num_threads())

    def payload_details(self) -> Mapping[str, Any]:
        """The precision: it is a setting of the compilation, not of the model."""
        return {"precision": self.options.precision}

    def cache_key(self) -> str:
        """The version of OpenVINO too."""
        return f"{super().cache_key()} openvino {version('openvino')}"


def _narrowed(node: fx.Node) -> str:
    """Why a node would lose digits: the CPU plugin has 64-bit integers as 32, and float64 as float32.

    What only moves integers is let through, and the vectors that hold a graph's numbers; whether the integers of a call
    fit is looked at when it is made.
    """
    made: Any = node.meta["val"]
    for value in made if isinstance(made, (list, tuple)) else [made]:
        if value.dtype is torch.int64 and node.target not in _MOVES:
            return "OpenVINO computes 64-bit integers in 32 bits"
        if value.dtype is torch.float64 and node.target is not _aten.select.int:
            return "OpenVINO computes float64 in float32"
    if any(x.dtype is torch.float64 and (x.dim() > 1 or node.target not in _MOVES) for x in operands_of(node)):
        return "OpenVINO computes float64 in float32"
    return ""


class Model:
    """A compiled model; it takes and gives tensors."""

    def __init__(self, content: bytes, precision: str, threads: int) -> None:
        self.content = content
        self._compiled = CompiledModel(read_model(content), precision, threads)

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """The outputs, in memory of their own.

        Raises:
            OverflowError: an integer has more than 32 bits.
        """
        for x in inputs:
            if x.dtype is torch.int64 and x.numel() and int(x.abs().max()) >= 1 << 31:
                raise OverflowError("OpenVINO has 64-bit integers as 32-bit ones, and one of these needs more")
        return [torch.from_numpy(x) for x in self._compiled.run([x.numpy() for x in inputs])]
