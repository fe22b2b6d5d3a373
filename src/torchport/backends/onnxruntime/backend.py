"""ONNX Runtime behind the contract."""

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
from torchport.backend.compiler.checking import check_results, tensors_of
from torchport.backends.onnxruntime.options import OnnxruntimeOptions
from torchport_runtime.onnxruntime import Session

_NEEDED = ("onnxruntime", "onnx", "onnxscript")
_DTYPES = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bool),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
    }
)
_REFUSED: Mapping[Any, str] = {
    torch.ops.aten._native_batch_norm_legit_functional.default: "the exporter has its training mode wrong",
    torch.ops.aten.empty.memory_format: "its contents are left open",
}


@cache
def _converting() -> ModuleType:
    """PyTorch's exporter, at its first use: it takes a second to import."""
    return import_module("torchport.backends.onnxruntime.converting")


class OnnxruntimeBackend(CompilerBackend):
    """Converts graphs to ONNX and runs them with ONNX Runtime, on the CPU; files need no PyTorch on the target."""

    Options: ClassVar[type] = OnnxruntimeOptions
    capabilities = Capabilities(
        random=True,
        random_state=True,
        eager_random_stream=True,
        concurrent_execution=True,
        serialization=True,
        training=True,
    )

    @classmethod
    def availability(cls) -> Availability:
        """Whether the runtime and the converter are installed."""
        return _availability(_NEEDED)

    @classmethod
    def runtime_availability(cls) -> Availability:
        """Whether the runtime is installed."""
        return _availability(_NEEDED[:1])

    def supports_operator(self, node: fx.Node) -> Support:
        """What the exporter has a form for, in dtypes that ONNX Runtime computes in."""
        if node.target is operator.getitem:
            return Support(True)
        reason = _REFUSED.get(node.target)
        if reason is not None:
            return Support(False, reason)
        if not _converting().has_form(node.target):
            return Support(False, f"PyTorch's exporter has no ONNX form of {node.target}")
        for value in tensors_of(node):
            if value.dtype not in _DTYPES:
                return Support(False, f"ONNX Runtime does not compute in {value.dtype} on the CPU")
        return Support(True)

    def compile_graph(self, program: CompilerInput) -> Executable:
        """The model of a graph, loaded.

        Raises:
            ValueError: its results are not those of PyTorch.
        """
        executable = Model(_converting().to_onnx(program), len(program.outputs), self._threads, self.options)
        if self.options.check:
            check_results(program, executable)
        return executable

    def serialize(self, executable: Executable) -> bytes:
        """The model."""
        assert isinstance(executable, Model)
        return executable.content

    def deserialize(self, payload: bytes | memoryview) -> Executable:
        """A model, loaded."""
        return Model(bytes(payload), None, self._threads, self.options)

    @property
    def _threads(self) -> int:
        return self.options.threads or torch.get_num_threads()

    def cache_key(self) -> str:
        """The version of the runtime too."""
        return f"{super().cache_key()} onnxruntime {version('onnxruntime')} onnx {version('onnx')}"


def _availability(needed: Sequence[str]) -> Availability:
    missing = []
    for name in needed:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Availability(False, f'{" and ".join(missing)} is not installed: pip install "torchport[onnxruntime]"')
    return Availability(True, "", version("onnxruntime"))


class Model:
    """A loaded model; it takes and gives tensors."""

    def __init__(self, content: bytes, outputs: int | None, threads: int, options: OnnxruntimeOptions) -> None:
        self.content = content
        self._session = Session(content, threads, options.optimization)

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The outputs. Contiguous tensors are read where they are, others are copied."""
        made = self._session.run([x.contiguous().numpy() for x in inputs])
        return [torch.from_numpy(x) for x in made]
