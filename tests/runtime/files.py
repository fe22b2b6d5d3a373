"""Valid files, and ways to spoil them."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

from torchport_runtime.container import Writer, checksum


def members_of(path: Path) -> dict[str, bytes]:
    """The members of a file, in order."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(path: Path, members: dict[str, bytes], right_checksums: bool = False) -> None:
    """A file with these members, made as ours are; with the manifest's checksums made right where that is asked."""
    if right_checksums:
        members = {**members, "manifest.json": _with_right_checksums(members)}
    with Writer(path) as writer:
        for name, content in members.items():
            writer.add(name, content)


def _with_right_checksums(members: dict[str, bytes]) -> bytes:
    try:
        manifest = json.loads(members["manifest.json"])
        manifest["members"] = {
            n: {"bytes": len(c), "blake2b": checksum(c)} for n, c in members.items() if n != "manifest.json"
        }
        return json.dumps(manifest).encode()
    except (ValueError, KeyError, TypeError):
        return members.get("manifest.json", b"")


def mutate(members: dict[str, bytes], raw: bytes, draw: random.Random) -> tuple[dict[str, bytes] | None, bytes, bool]:
    """A spoilt file: members to write (with the checksums right or not), or raw bytes."""
    how = draw.randrange(9)
    if how == 0:  # a byte of the file
        at = draw.randrange(len(raw))
        return None, raw[:at] + bytes([draw.randrange(256)]) + raw[at + 1 :], False
    if how == 1:  # cut short
        return None, raw[: draw.randrange(len(raw))], False
    if how == 2:  # a few bytes anywhere
        changed = bytearray(raw)
        for _ in range(draw.randrange(1, 16)):
            changed[draw.randrange(len(raw))] = draw.randrange(256)
        return None, bytes(changed), False
    found = dict(members)
    name = draw.choice(list(found))
    content = found[name]
    if how == 3:  # a byte of a member
        at = draw.randrange(max(len(content), 1))
        found[name] = content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
    elif how == 4:  # a member grows or shrinks
        at = draw.randrange(len(content) + 1)
        found[name] = content[:at] + draw.randbytes(draw.randrange(64)) + content[at + draw.randrange(64) :]
    elif how == 5:  # two members change places
        other = draw.choice(list(found))
        found[name], found[other] = found[other], found[name]
    elif how == 6:  # a member is gone, or has another name
        del found[name]
        if draw.random() < 0.5:
            found[draw.choice([name + "x", "x" + name, "x", name.upper()])] = content
    elif how == 7:  # a token of a text
        text = content.decode("latin-1")
        tokens = [
            "0",
            "-1",
            "999999999999",
            "%0",
            "$0",
            "s0",
            "f32",
            "[",
            "]",
            "null",
            '"x"',
            "{}",
            "true",
            "1e999",
            "",
        ]
        pieces = text.split(" ")
        pieces[draw.randrange(len(pieces))] = draw.choice(tokens)
        found[name] = " ".join(pieces).encode("latin-1")
    else:  # a number of a text
        text = content.decode("latin-1")
        digits = [i for i, c in enumerate(text) if c.isdigit()]
        if digits:
            at = draw.choice(digits)
            text = text[:at] + draw.choice("0123456789") * draw.choice([1, 1, 1, 18]) + text[at + 1 :]
            found[name] = text.encode("latin-1")
    return found, b"", draw.random() < 0.8
