"""IREE behind the contract."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from torchport.backend.compiler.decompositions import core_decompositions
from torchport.backend.compiler.retracing import Decompositions
from torchport.backends.iree.options import IreeOptions
from torchport.backends.iree.refusals import REFUSED
from torchport.backends.iree.written import WRITTEN
from torchport_runtime.iree import VmProgram

_DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bool, torch.int8, torch.int32, torch.int64})
_ALIGNMENT = 64
to_dlpack: Callable[[torch.Tensor], Any] = torch._C._to_dlpack
from_dlpack: Callable[[Any], torch.Tensor] = torch._C._from_dlpack


@cache
def _compiling() -> ModuleType:
    return import_module("torchport.backends.iree.compiling")


class IreeBackend(CompilerBackend):
    """Compiles graphs with IREE, for this processor or another; files need 47 MB of runtime and no PyTorch."""

    Options: ClassVar[type] = IreeOptions
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
        """Whether compiler and runtime are installed."""
        return _availability(("iree-base-compiler", "iree-base-runtime"))

    @classmethod
    def runtime_availability(cls) -> Availability:
        """Whether the runtime is installed."""
        return _availability(("iree-base-runtime",))

    def targets(self) -> Sequence[str]:
        """LLVM's names of machines that IREE's compiler is built for; give one as the option ``target_triple``."""
        return ("x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu", "arm64-apple-darwin", "x86_64-windows")

    def decompositions(self) -> Decompositions:
        """Those to core ATen, and IREE's own."""
        return {**core_decompositions(), **WRITTEN}

    def supports_operator(self, node: fx.Node) -> Support:
        """What IREE compiles, and computes right, in dtypes that its CPU code has."""
        if node.target is operator.getitem:
            return Support(True)
        reason = REFUSED.get(str(node.target))
        if reason is not None:
            return Support(False, reason)
        for value in tensors_of(node):
            if value.dtype not in _DTYPES:
                return Support(False, f"IREE's CPU code is not used for {value.dtype} here")
        if any(not value.numel() for value in operands_of(node)):
            return Support(False, "IREE takes no tensors without elements")
        return Support(True)

    def compile_graph(self, program: CompilerInput) -> Executable:
        """The program of a graph, loaded where it is for this machine.

        Raises:
            ValueError: its results are not those of PyTorch.
        """
        options = replace(self.options, target_cpu=self.options.target_cpu or "host")
        content = _compiling().to_vmfb(_compiling().to_mlir(program), options)
        is_foreign = bool(options.target_triple) or options.target_cpu != "host"
        executable = Program(content, self.options.driver, load=not (program.saved and is_foreign))
        if executable.is_loaded:
            check_results(program, executable)
        return executable

    def serialize(self, executable: Executable) -> bytes:
        """The module's bytes."""
        assert isinstance(executable, Program)
        return executable.content

    def deserialize(self, payload: bytes | memoryview) -> Executable:
        """A program, loaded."""
        return Program(bytes(payload), self.options.driver)

    def cache_key(self) -> str:
        """The compiler's version too."""
        return f"{super().cache_key()} iree {version('iree-base-compiler')}"


def _availability(needed: Sequence[str]) -> Availability:
    missing = []
    for name in needed:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Availability(False, f'{" and ".join(missing)} is not installed: pip install "torchport[iree]"')
    return Availability(True, "", version("iree-base-runtime"))


class Program:
    """A compiled program; it takes and gives tensors.

    A tensor is read where it is when it is row-major and begins at a multiple of 64 bytes, as PyTorch's own memory
    does; else it is copied. Results are IREE's memory, which lives as long as they do.
    """

    def __init__(self, content: bytes, driver: str, load: bool = True) -> None:
        self.content = content
        self._program = VmProgram(content, driver) if load else None

    @property
    def is_loaded(self) -> bool:
        """Whether it can be called here."""
        return self._program is not None

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The outputs."""
        assert self._program is not None
        views = self._program.run([to_dlpack(_aligned(x)) for x in inputs])
        return [from_dlpack(self._program.capsule_of(view)) for view in views]


def _aligned(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    if x.is_contiguous() and x.data_ptr() % _ALIGNMENT == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)
