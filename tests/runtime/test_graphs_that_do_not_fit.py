"""Graphs and payloads with right checksums that are other ones than are called: both readers say so when they load."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torchport_runtime
from aot.subjects import Blocks, Cache, Switched, registered, spec_of
from runtime.files import members_of, write_members
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport_runtime.backends import Part, RuntimeBackend, unregister_backend
from torchport_runtime.compiled import Array, CompiledBackend, ProgramHeader, pack
from torchport_runtime.errors import DamagedFileError, ExecutionError

LOADERS: list[Callable[[Path], object]] = [load, torchport_runtime.load]
PAYLOAD, GRAPH, METHOD = "payloads/forward.p0", "graphs/forward.p0.txt", "graphs/forward.txt"


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("valid") / "m.tport"
    batch = torch.export.Dim("batch", min=2)
    spec = {"forward": CompileSpec((torch.randn(3, 6),), None, ({0: batch},))}
    to_backend("interpreter", Blocks().eval(), spec, fallback="interpreter").save(path)
    return members_of(path)


def with_results(graph: bytes, change: Callable[[str], str]) -> bytes:
    head, found, tail = graph.decode().rpartition("  return ")
    return (head + found + change(tail.partition("\n")[0]) + "\n}\n").encode()


@pytest.mark.parametrize("load_file", LOADERS)
@pytest.mark.parametrize("member", [PAYLOAD, GRAPH])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: with_results(g, lambda r: f"{r}, {r}"), "it has 2 results, and 1 are declared"),
        (lambda g: with_results(g, lambda r: "%0"), r"result 0 is .*, and f32\[\w+\] is declared"),
        (lambda g: re.sub(rb"%0: f32\[", b"%0: f64[", g), "tensor 0 is f64.*, and f32.* is declared"),
        (lambda g: re.sub(rb"%0: f32\[\w+(=\d+)?", b"%0: f32[7", g), r"tensor 0 is f32\[7.*, and f32.* is declared"),
    ],
)
def test_a_part_whose_graph_is_another_than_is_called(
    members: dict[str, bytes], tmp_path: Path, load_file, member: str, change: Callable[[bytes], bytes], message: str
) -> None:
    changed = change(members[member])
    assert changed != members[member]
    write_members(tmp_path / "m.tport", {**members, member: changed}, right_checksums=True)
    with pytest.raises(DamagedFileError, match=message):
        load_file(tmp_path / "m.tport")


@pytest.mark.parametrize("load_file", LOADERS)
def test_a_graph_that_takes_weights_inputs_or_state_of_other_sizes(tmp_path: Path, load_file) -> None:
    path = tmp_path / "m.tport"
    to_backend("interpreter", Cache().eval(), spec_of(torch.randn(4))).save(path)
    members = members_of(path)
    for graph in (METHOD, PAYLOAD):
        members[graph] = members[graph].replace(b"f32[8, 4]", b"f32[9, 4]").replace(b"f32[4, 8]", b"f32[4, 9]")
    write_members(path, members, right_checksums=True)
    with pytest.raises(DamagedFileError, match=r"weight 'keys' is f32\[8, 4\], and the graph takes f32\[9, 4\]"):
        load_file(path)


@pytest.mark.parametrize("load_file", LOADERS)
@pytest.mark.parametrize("content", [b"\xff\xfe", b"no graph " * 10_000, b""])
def test_a_payload_that_is_no_graph_is_a_damaged_file_in_few_words(
    members: dict[str, bytes], tmp_path: Path, load_file, content: bytes
) -> None:
    write_members(tmp_path / "m.tport", {**members, PAYLOAD: content}, right_checksums=True)
    with pytest.raises(DamagedFileError, match="is no graph") as raised:
        load_file(tmp_path / "m.tport")
    assert len(str(raised.value)) < 600 + len(str(tmp_path))


class _Adds(CompiledBackend):
    """What a compiler's programs are loaded by; its only program adds one."""

    def load_program(self, body: memoryview, header: ProgramHeader) -> Callable[[list[Array]], Sequence[Array]]:
        return lambda arrays: [arrays[0] + 1]


def _program(dtype: str, inputs: tuple[int | str, ...], outputs: tuple[int | str, ...], results: int = 1) -> bytes:
    header = ProgramHeader(((dtype, inputs),), (), (), {}, (("output", 0),) * results, ((dtype, outputs),), None)
    return pack(header, b"body")


def test_a_compiled_program_that_takes_or_gives_other_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.tport"
    spec = {"forward": CompileSpec((torch.zeros(3, 4),), None, ({0: torch.export.Dim("batch", min=2)},))}
    with registered("adds", Switched()):
        to_backend("adds", nn.ReLU(), spec).save(path)
    members = members_of(path)
    torchport_runtime.register_backend("adds", _Adds())
    try:
        for size in ("batch", 3):  # compilers may know the sizes of the capture only
            write_members(path, {**members, PAYLOAD: _program("f32", (size, 4), (size, 4))}, right_checksums=True)
            assert torchport_runtime.load(path)(np.zeros((2, 4), np.float32)).tolist() == [[1] * 4] * 2
        for wrong, message in (
            (_program("f64", (3, 4), (3, 4)), r"tensor 0 is f64\[3, 4\], and f32\[batch, 4\] is declared"),
            (_program("f32", (3, 4), (3, 5)), r"result 0 is f32\[3, 5\], and f32\[batch, 4\] is declared"),
            (_program("f32", (3, 4), (3, 4), results=2), "it has 2 results, and 1 are declared"),
            (_program("f32", (3, 4), (3, 4))[:-80], "header"),
        ):
            write_members(path, {**members, PAYLOAD: wrong}, right_checksums=True)
            with pytest.raises(DamagedFileError, match=message):
                torchport_runtime.load(path)
    finally:
        unregister_backend("adds")


class _Odd(RuntimeBackend):
    """A stranger's, whose parts do what they like."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def load(self, payload: memoryview, options: object) -> Part:
        return self.part


def _raises(arrays: list[object], numbers: list[object]) -> list[object]:
    raise RuntimeError("out of luck")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda arrays, numbers: [np.zeros(4)], r"forward\.p0 on 'odd' gave sizes \[4\] for f32\[3\]"),
        (lambda arrays, numbers: [], r"forward\.p0 on 'odd' gave 0 results; 1 are wanted"),
        (_raises, r"forward\.p0 on 'odd' failed: RuntimeError: out of luck"),
    ],
)
def test_a_part_that_fails_or_gives_too_little_when_it_is_called_is_named(
    tmp_path: Path, part: Part, message: str
) -> None:
    with registered("odd", Switched()):
        to_backend("odd", Blocks().eval(), spec_of(torch.randn(3, 6))).save(tmp_path / "m.tport")
    torchport_runtime.register_backend("odd", _Odd(part))
    try:
        program = torchport_runtime.load(tmp_path / "m.tport")
        with pytest.raises(ExecutionError, match=message):
            program(torch.randn(3, 6).numpy())
    finally:
        unregister_backend("odd")
