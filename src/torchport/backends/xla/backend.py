"""XLA behind the contract, by way of jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import fx

from torchport.backend import Availability, Capabilities, Shape, Support
from torchport.backend.compiler import CompilerBackend, CompilerInput, Executable
from torchport.backends.xla.options import XlaOptions

_NEEDED = ("jax", "jaxlib", "flatbuffers")


@cache
def _lowering() -> ModuleType:
    return import_module("torchport.backends.xla.lowering")


@cache
def _running() -> ModuleType:
    return import_module("torchport.backends.xla.running")


class XlaBackend(CompilerBackend):
    """Runs graphs with XLA. Handles are arrays of jax; files hold StableHLO, which needs jax and no PyTorch."""

    Options: ClassVar[type] = XlaOptions
    capabilities = Capabilities(
        input_output_aliasing=True,
        random=True,
        random_state=True,
        eager_random_stream=True,
        concurrent_execution=True,
        training=True,
    )

    @classmethod
    def availability(cls) -> Availability:
        """Whether jax is installed, and what its export needs."""
        missing = []
        for name in _NEEDED:
            try:
                version(name)
            except PackageNotFoundError:
                missing.append(name)
        if missing:
            return Availability(False, f'{" and ".join(missing)} is not installed: pip install "torchport[xla]"')
        return Availability(True, "", version("jax"))

    def targets(self) -> Sequence[str]:
        """The platforms that a file may be for: give them as the option ``platforms``, as in ``cpu+cuda``."""
        return ("cpu", "cuda", "rocm", "tpu")

    def supports_operator(self, node: fx.Node) -> Support:
        """What the table has, in jax's types."""
        reason = _lowering().refusal(node)
        return Support(not reason, reason)

    def compile_graph(self, program: CompilerInput) -> Executable:
        """The program, jitted; donated inputs give their buffers to outputs."""
        function = _lowering().lowered(program.module)
        return _running().Program(  # type: ignore[no-any-return]
            function, program.inputs, sorted(program.aliases.values()), self.options
        )

    def serialize(self, executable: Executable) -> bytes:
        """StableHLO, as ``jax.export`` writes it."""
        export: Callable[[], bytes] = executable.export  # type: ignore[attr-defined]
        return export()

    def deserialize(self, payload: bytes | memoryview) -> Executable:
        """What was exported, jitted."""
        return _running().Exported(bytes(payload))  # type: ignore[no-any-return]

    # -- handles ------------------------------------------------------------------------------------------------

    def from_host(self, tensor: torch.Tensor) -> Any:
        """An array of jax."""
        return _running().to_jax(tensor)

    def to_host(self, handle: Any) -> torch.Tensor:
        """The memory of an array, as a tensor."""
        tensor: torch.Tensor = _running().to_torch(handle)
        return tensor

    def copy_handle(self, handle: Any) -> Any:
        """An array of its own."""
        return _running().copied(handle)

    def shape_of_handle(self, handle: Any, promised: Shape) -> Shape:
        """The promised one: an array has no strides."""
        return promised

    def cache_key(self) -> str:
        """The version of jax too."""
        return f"{super().cache_key()} jax {version('jax')}"
