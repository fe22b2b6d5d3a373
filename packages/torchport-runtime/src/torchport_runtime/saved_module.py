"""A saved module: written as one file, read with everything checked before anything is used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchport_runtime.container import Bytes, Container, Writer, checksum
from torchport_runtime.errors import DamagedFileError
from torchport_runtime.manifest import Manifest, Member
from torchport_runtime.targets import check_target
from torchport_runtime.weights import RawTensor, read_weights, write_weights

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
_MOST_MANIFEST_BYTES = 64 << 20
_MOST_GRAPH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class SavedModule:
    """What a file holds; weights and payloads lie where it is mapped.

    Attributes:
        path: the file.
        manifest: what is in it.
        graphs: member → text.
        weights: name → tensor; shared ones are there once, under their first name.
        payloads: member → bytes.
    """

    path: Path
    manifest: Manifest
    graphs: Mapping[str, str]
    weights: Mapping[str, RawTensor]
    payloads: Mapping[str, memoryview]


def write_module(
    path: str | os.PathLike[str],
    manifest: Manifest,
    graphs: Mapping[str, str],
    weights: Mapping[str, RawTensor],
    payloads: Mapping[str, Bytes],
) -> None:
    """Writes a file; what was there stays until it is whole.

    Args:
        path: the file.
        manifest: without ``members``, which are filled in.
        graphs: member → text.
        weights: name → tensor.
        payloads: member → bytes.

    Raises:
        SavedFileError: the file cannot be written.
    """
    texts = {name: text.encode() for name, text in graphs.items()}
    pieces, size = write_weights(weights)
    members = {name: Member(len(content), checksum(content)) for name, content in texts.items()}
    members |= {name: Member(memoryview(p).nbytes, checksum(p)) for name, p in payloads.items()}
    members[WEIGHTS] = Member(size, _checksum_of_pieces(weights))
    with Writer(path) as writer:
        writer.add(MANIFEST, replace(manifest, members=members).to_json())
        for name, content in texts.items():
            writer.add(name, content)
        for name, payload in payloads.items():
            writer.add(name, payload)
        writer.add(WEIGHTS, pieces, size)


def _checksum_of_pieces(weights: Mapping[str, RawTensor]) -> str:
    pieces, _ = write_weights(weights)
    return checksum(*pieces)


def open_module(path: str | os.PathLike[str], writable: bool = False) -> SavedModule:
    """What a file holds, checked: the directory, the version, the manifest, every member's size and checksum.

    Args:
        path: the file.
        writable: whether weights may be written to where they are mapped; the file stays as it is.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedFileError: it is not what was saved.
        FormatVersionError: another version of the format wrote it.
        TargetMismatchError: it was made for another kind of machine.
    """
    container = Container(path, writable)
    if MANIFEST not in container.names:
        raise DamagedFileError(f"{container.path} has no {MANIFEST}: it is no saved module, or was cut short")
    if container.size_of(MANIFEST) > _MOST_MANIFEST_BYTES:
        raise DamagedFileError(f"{container.path}: a manifest of more than {_MOST_MANIFEST_BYTES} bytes")
    manifest = Manifest.from_json(container.read_checked(MANIFEST))
    check_target(manifest.target, container.path)
    _check_members(container, manifest)
    graphs: dict[str, str] = {}
    payloads: dict[str, memoryview] = {}
    for method in manifest.methods.values():
        for name in (method.graph, *(p.graph for p in method.partitions.values() if p.graph)):
            graphs[name] = _text(container, name)
        for partition in method.partitions.values():
            payloads[partition.payload] = container.read(partition.payload)
    weights = read_weights(container.read(WEIGHTS))
    return SavedModule(container.path, manifest, graphs, weights, payloads)


def _check_members(container: Container, manifest: Manifest) -> None:
    listed, there = set(manifest.members), set(container.names) - {MANIFEST}
    if listed != there:
        what = [f"lacks {', '.join(sorted(listed - there))}"] if listed - there else []
        what += [f"has {', '.join(sorted(there - listed))} that its manifest lacks"] if there - listed else []
        raise DamagedFileError(f"{container.path} {' and '.join(what)}. Copy it again.")
    for name, member in manifest.members.items():
        content = container.read(name)
        if content.nbytes != member.size or checksum(content) != member.checksum:
            raise DamagedFileError(f"{container.path}: {name!r} is not what was saved. Copy the file again.")


def _text(container: Container, name: str) -> str:
    content = container.read(name)
    if content.nbytes > _MOST_GRAPH_BYTES:
        raise DamagedFileError(f"{container.path}: {name!r} has more than {_MOST_GRAPH_BYTES} bytes")
    try:
        return bytes(content).decode()
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{container.path}: {name!r} is no text: {error}") from error
