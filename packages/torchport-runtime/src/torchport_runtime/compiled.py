"""Payloads of compilers: what a program takes and gives, then what the compiler made, in bytes of its own."""

from __future__ import annotations

import json
import math
import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchport_runtime.backends import Part, RuntimeBackend
from torchport_runtime.errors import DamagedFileError, UnsupportedOperationError
from torchport_runtime.facts import GraphFacts, TensorFacts

_MAGIC = b"TPPROGR1"
_ALIGNMENT = 64
_LONGEST_HEADER = 1 << 24

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ProgramHeader:
    """What a program takes and gives.

    Attributes:
        inputs: scalar type and sizes of each tensor that it takes first; a size is a number, or a symbol's name.
        floats, integers: positions among the graph's numbers; each kind that there is, is one vector input after the
            tensors (float64, int64).
        constants: position among the graph's numbers → the value that it was compiled for.
        results: for each result of the graph ``("output", i)`` or ``("input", i)``.
        outputs: scalar type and sizes of each output.
        draws: the text of the graph that draws random numbers, further inputs; ``None`` where none are drawn.
        details: what the backend adds.
    """

    inputs: tuple[tuple[str, tuple[int | str, ...]], ...]
    floats: tuple[int, ...]
    integers: tuple[int, ...]
    constants: Mapping[int, Any]
    results: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, tuple[int | str, ...]], ...]
    draws: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def pack(header: ProgramHeader, body: bytes) -> bytes:
    """The payload of a program; the body begins at a multiple of 64 bytes."""
    text = json.dumps(
        {
            "inputs": header.inputs,
            "floats": header.floats,
            "integers": header.integers,
            "constants": [[p, _written(value)] for p, value in header.constants.items()],
            "results": header.results,
            "outputs": header.outputs,
            "draws": header.draws,
            "details": dict(header.details),
        }
    ).encode()
    start = len(_MAGIC) + 4 + len(text)
    padding = -start % _ALIGNMENT
    return b"".join((_MAGIC, struct.pack("<I", len(text) + padding), text, b" " * padding, body))


def is_program(payload: bytes | memoryview) -> bool:
    """Whether a payload is a program's."""
    return bytes(payload[: len(_MAGIC)]) == _MAGIC


def unpack(payload: bytes | memoryview) -> tuple[ProgramHeader, memoryview]:
    """The header of a payload, and where the body is.

    Raises:
        DamagedFileError: it is none.
    """
    view = memoryview(payload)
    start = len(_MAGIC) + 4
    if not is_program(view) or len(view) < start:
        raise DamagedFileError("the payload is not that of a compiled program")
    (length,) = struct.unpack("<I", view[len(_MAGIC) : start])
    if length > min(_LONGEST_HEADER, len(view) - start):
        raise DamagedFileError(f"the payload's header would have {length} bytes; {len(view) - start} are there")
    try:
        found = json.loads(bytes(view[start : start + length]))
        header = ProgramHeader(
            _shapes(found["inputs"]),
            tuple(map(_position, found["floats"])),
            tuple(map(_position, found["integers"])),
            {_position(p): _read(value) for p, value in found["constants"]},
            tuple((_kind(kind), _position(index)) for kind, index in found["results"]),
            _shapes(found["outputs"]),
            None if found["draws"] is None else str(found["draws"]),
            dict(found["details"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFileError(f"the payload's header is damaged: {type(error).__name__}: {error}") from error
    # How many tensors are drawn, which are inputs too, only the graph of the draws says.
    bounds = {"output": len(header.outputs), "input": len(header.inputs) if header.draws is None else math.inf}
    if any(index >= bounds[kind] for kind, index in header.results):
        raise DamagedFileError("the payload's header names an output or an input that does not exist")
    return header, view[start + length :]


def _shapes(found: Any) -> tuple[tuple[str, tuple[int | str, ...]], ...]:
    return tuple((str(dtype), tuple(map(_size, sizes))) for dtype, sizes in found)


def _size(value: Any) -> int | str:
    return value if isinstance(value, str) else _position(value)


def _written(value: Any) -> Any:
    return {"real": value.real, "imag": value.imag} if isinstance(value, complex) else value


def _read(value: Any) -> Any:
    return complex(float(value["real"]), float(value["imag"])) if isinstance(value, dict) else value


def _position(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number from 0")
    return value


def _kind(value: Any) -> str:
    if value not in ("output", "input"):
        raise ValueError(f"{value!r} is neither 'output' nor 'input'")
    return str(value)


class CompiledBackend(RuntimeBackend):
    """What runs a compiler's programs without PyTorch: subclasses say how a body is loaded."""

    @abstractmethod
    def load_program(self, body: memoryview, header: ProgramHeader) -> Callable[[list[Array]], Sequence[Array]]:
        """The program of a body: arrays in, as the header says; an array per output out. Threads may share it.

        Raises:
            Exception: of any kind: it cannot be loaded here. Its text becomes the reason.
        """

    def load(self, payload: memoryview, options: Any) -> Part:
        """A part that runs the program of a payload."""
        header, body = unpack(payload)
        if header.draws is not None:
            raise UnsupportedOperationError("the program takes random numbers, which are drawn where PyTorch is")
        run = self.load_program(body, header) if header.outputs else _computes_nothing
        return CompiledPart(run, header)


def _computes_nothing(arrays: list[Array]) -> Sequence[Array]:
    return ()


def facts_of_header(header: ProgramHeader, drawn: Sequence[TensorFacts] = ()) -> GraphFacts:
    """What the graph of a program takes and gives; ``drawn`` are the random numbers, its last inputs."""
    vectors = [(dtype, (len(p),)) for dtype, p in (("f64", header.floats), ("i64", header.integers)) if p]
    inputs = (*header.inputs, *vectors, *drawn)
    results = [(header.outputs if kind == "output" else inputs)[i] for kind, i in header.results]
    return GraphFacts(header.inputs, None, results, has_symbols=False)


class CompiledPart:
    """A part that runs a compiled program.

    Args:
        run: the program.
        header: what it takes and gives.
    """

    def __init__(self, run: Callable[[list[Array]], Sequence[Array]], header: ProgramHeader) -> None:
        self.facts = facts_of_header(header)
        self._run = run
        self._header = header

    def __call__(self, arrays: list[Any], numbers: list[Any]) -> list[Any]:
        """The graph's results."""
        header = self._header
        for position, value in header.constants.items():
            if numbers[position] != value:
                raise UnsupportedOperationError(f"number {position} is {numbers[position]!r}; compiled for {value!r}")
        given = list(arrays)
        if header.floats:
            given.append(np.array([numbers[i] for i in header.floats], np.float64))
        if header.integers:
            given.append(np.array([numbers[i] for i in header.integers], np.int64))
        made = self._run(given)
        if len(made) != len(header.outputs):
            raise DamagedFileError(f"the program gave {len(made)} outputs; its header says {len(header.outputs)}")
        return [made[index] if kind == "output" else given[index] for kind, index in header.results]
