"""Backends that break one law of lowering each."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from torchport.backend import Availability, Capabilities, PyTorchBackendInterface
from torchport.backend.compiler.base import CompilerBackend
from torchport.backend.compiler.delegate import CompilerDelegate
from torchport.backend.compiler.program import CompilerInput, Executable


class Trivial(CompilerBackend):
    """A compiler that runs the graph as PyTorch does: it keeps every law."""

    def compile_graph(self, program: CompilerInput) -> Executable:
        return program.module


class FailsOnErf(Trivial):
    """It finds out when it compiles."""

    def compile_graph(self, program: CompilerInput) -> Executable:
        if any(n.target is torch.ops.aten.erf.default for n in program.module.graph.nodes):
            raise NotImplementedError("no erf in this compiler")
        return program.module


class _WithDelegate(Trivial):
    made: type[CompilerDelegate] = CompilerDelegate

    def delegate(self) -> PyTorchBackendInterface:
        return self.made(self)


class _WritesToItsInputs(CompilerDelegate):
    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        results = super().execute(handle, inputs)
        if len(inputs) == 2:
            inputs[0].zero_()
        return results


class WritesToAnInput(_WithDelegate):
    made = _WritesToItsInputs


class _ReturnsItsInput(CompilerDelegate):
    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        results = super().execute(handle, inputs)
        same = [x for r in results for x in inputs if isinstance(x, torch.Tensor) and torch.equal(r, x)]
        return [next((x for x in same if x.shape == r.shape and torch.equal(x, r)), r) for r in results]


class AliasesAnInput(_WithDelegate):
    """What is passed through comes back as it is, not as a copy."""

    made = _ReturnsItsInput


class _KeepsItsInputs(CompilerDelegate):
    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        self.__dict__.setdefault("kept", []).extend(inputs)
        return super().execute(handle, inputs)


class KeepsItsInputs(_WithDelegate):
    made = _KeepsItsInputs


class _MixesMethodsUp(CompilerDelegate):
    def compile(self, processed: Mapping[str, Any], method_compile_spec: Mapping[str, Any]) -> dict[str, Any]:
        made = super().compile(processed, method_compile_spec)
        return dict(zip(made, list(made.values())[::-1], strict=True))


class MixesMethodsUp(_WithDelegate):
    made = _MixesMethodsUp


class _DrawsItsOwn(CompilerDelegate):
    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        state = torch.get_rng_state()
        torch.seed()
        try:
            return super().execute(handle, inputs)
        finally:
            torch.set_rng_state(state)


class IgnoresTheSeed(_WithDelegate):
    made = _DrawsItsOwn


class _SaysYes(CompilerDelegate):
    def is_available(self) -> Availability:
        return Availability(True)

    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        raise OSError("the runtime's library is not here")


class LiesAboutAvailability(_WithDelegate):
    made = _SaysYes


class _SaysNo(CompilerDelegate):
    def is_available(self) -> Availability:
        return Availability(False, "the runtime's library is not here")


class DoorsThatDisagree(_WithDelegate):
    made = _SaysNo


class SharesItsBuffer(Trivial):
    """Not thread-safe: as a compiled program whose input is bound to one piece of memory."""

    def compile_graph(self, program: CompilerInput) -> Executable:
        bound: list[torch.Tensor] = []

        def run(*handles: torch.Tensor) -> Any:
            if threading.current_thread() is threading.main_thread():
                return program.module(*handles)
            bound[:] = handles
            threading.Event().wait(0.0005)
            return program.module(*bound)

        return run


class LosesWhatItSaves(Trivial):
    """Its bytes name something in the memory of the process that wrote them."""

    capabilities: Capabilities = replace(CompilerBackend.capabilities, serialization=True)
    programs: dict[bytes, Executable] = {}  # noqa: RUF012 - shared by all instances, which is the fault

    def compile_graph(self, program: CompilerInput) -> Executable:
        return program.module

    def serialize(self, executable: Executable) -> bytes:
        name = str(len(self.programs)).encode().rjust(64, b"0")
        self.programs[name] = executable
        return name

    def deserialize(self, payload: bytes | memoryview) -> Executable:
        return self.programs[bytes(payload)]
