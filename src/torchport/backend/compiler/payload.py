"""Programs as bytes: what they take and give, and what the compiler made. The form is the runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchport.backend.compiler.inputs import Inputs
from torchport.backend.compiler.program import CompilerInput, Outputs
from torchport.ir.parser import parse_graph
from torchport.ir.shape import Shape, dtype_name, find_dtype
from torchport_runtime.compiled import ProgramHeader, is_program, pack, unpack

__all__ = ["header_of", "inputs_of", "is_program", "pack", "unpack"]


def header_of(inputs: Inputs, outputs: Outputs, program: CompilerInput, details: Mapping[str, Any]) -> ProgramHeader:
    """The header of a program.

    Args:
        inputs: what it takes.
        outputs: what its outputs are.
        program: what was compiled.
        details: what the backend adds.
    """
    return ProgramHeader(
        tuple((dtype_name(s.dtype), tuple(s.sizes)) for s in inputs.tensors),
        inputs.floats,
        inputs.integers,
        inputs.constants,
        outputs.sources,
        tuple((dtype_name(x.dtype), tuple(x.shape)) for x in program.outputs),
        None if inputs.draws is None else str(inputs.draws),
        details,
    )


def inputs_of(header: ProgramHeader) -> Inputs:
    """What the program of a saved file takes; its tensors are row-major, and draws take no numbers."""
    draws = None if header.draws is None else parse_graph(header.draws)
    shapes = tuple(Shape(find_dtype(d), tuple(int(n) for n in sizes)) for d, sizes in header.inputs)
    return Inputs(shapes, header.floats, header.integers, header.constants, draws, ())
