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
        for value in _tensors(node):
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
            _check(program, executable)
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


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    flat = [v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])]
    return [v for v in flat if isinstance(v, torch.Tensor)]


class Model:
    """A loaded model; it takes and gives tensors."""

    def __init__(self, content: bytes, outputs: int | None, threads: int, options: OnnxruntimeOptions) -> None:
        self.content = content
        self._session = Session(content, threads, options.optimization)

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The outputs. Contiguous tensors are read where they are, others are copied."""
        made = self._session.run([x.contiguous().numpy() for x in inputs])
        return [torch.from_numpy(x) for x in made]


def _check(program: CompilerInput, executable: Model) -> None:
    """Compares a model with the graph that it was made from; an exporter that is silently wrong is found so.

    Each output may differ by what another order of summation gives: 1e-4 (1e-2 in half precision) of its largest
    number, which is a hundred times float32's rounding.

    Raises:
        ValueError: an output differs by more.
    """
    inputs = program.example_inputs()
    with torch.no_grad():
        wanted = program.module(*inputs)
    for i, (ours, theirs) in enumerate(zip(executable(*inputs), wanted, strict=True)):
        finite = theirs[theirs.isfinite()].double().abs() if theirs.is_floating_point() else theirs.flatten()[:0]
        allowed = (1e-2 if theirs.dtype is torch.float16 else 1e-4) * max(
            1.0, float(finite.max()) if len(finite) else 0
        )
        try:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=allowed, equal_nan=True, check_stride=False)
        except AssertionError as error:
            raise ValueError(f"its output {i} differs from PyTorch's: {error}") from error
