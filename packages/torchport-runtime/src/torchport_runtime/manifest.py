"""The manifest of a saved module: what is in the file, and how a method is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchport_runtime.errors import FormatVersionError
from torchport_runtime.fields import Field, parse_json
from torchport_runtime.trees import Tree

FORMAT = "tport"
FORMAT_VERSION = 1

Json = Any


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the file: its size, and its BLAKE2b checksum in hexadecimal."""

    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight, or the first contents of a state.

    Attributes:
        shares: the name of another weight whose values these are; empty for its own.
        is_state: whether a method changes it.
        is_parameter: whether it was a parameter, not a buffer.
        is_passing: whether it is not in the module's ``state_dict``: a constant, or a buffer that is not persistent.
    """

    shares: str = ""
    is_state: bool = False
    is_parameter: bool = False
    is_passing: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a method's signature.

    Attributes:
        kind: as :class:`inspect.Parameter` names it.
        has_default: whether there is a default.
        default: of JSON's types, where there is one; ``None`` too where the default was of another type.
    """

    name: str
    kind: str
    has_default: bool = False
    default: Json = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that may vary: dimension ``dim`` of flat input ``leaf`` (the input itself where there is no ``dim``)."""

    leaf: int
    dim: int | None
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Slot:
    """A flat input or output.

    Attributes:
        kind: ``tensor``, ``constant`` (``value``, of JSON's types), ``int`` (an input that is the symbol ``value``),
            or ``size`` (an output that is the expression ``value``).
        dtype, sizes: of a tensor that is an input; a text is an expression over symbols.
    """

    kind: str
    dtype: str = ""
    sizes: tuple[int | str, ...] = ()
    value: Json = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A part that a backend runs.

    Attributes:
        backend: the backend's name.
        payload: the member with what the backend made of it.
        graph: the member with its graph, where the interpreter may run it; else empty.
        node_count: how many operators it has.
    """

    backend: str
    payload: str
    graph: str
    node_count: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node that the backend did not take.

    Attributes:
        op: the operator.
        location: its line in the host's program; empty where it is not known.
        reason: the backend's.
    """

    op: str
    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op}{f' at {self.location}' if self.location else ''}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Method:
    """A method. ``arguments`` and ``results`` are pairs: ``user``, ``weight``, ``state``, ``input``; and which."""

    graph: str
    partitions: Mapping[str, Partition]
    arguments: tuple[tuple[str, int | str], ...]
    results: tuple[tuple[str, int | str], ...]
    numbers: tuple[Json, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    symbols: Mapping[str, Symbol]
    in_tree: Tree
    out_tree: Tree
    parameters: tuple[Parameter, ...]
    training: bool
    options: Json = None
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a saved module but its bytes.

    Attributes:
        backend: the name of the backend that it was lowered to.
        versions: of who wrote the file: ``torchport``, ``torch``.
        target: the kind of machine that it runs on, as :func:`torchport_runtime.targets.this_target` names it; or
            ``any``.
        fallback: ``error`` or ``interpreter``: what was asked for at creation.
        methods, weights, members: by name.
        attributes: what was set on the module after it was lowered, of JSON's types.
    """

    backend: str
    versions: Mapping[str, str]
    target: str
    fallback: str
    methods: Mapping[str, Method]
    weights: Mapping[str, Weight]
    attributes: Mapping[str, Json] = field(default_factory=dict)
    members: Mapping[str, Member] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The text of the manifest."""
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "backend": self.backend,
            "versions": dict(self.versions),
            "target": self.target,
            "fallback": self.fallback,
            "methods": {name: _method_to_json(m) for name, m in self.methods.items()},
            "weights": {
                name: {
                    "shares": w.shares,
                    "state": w.is_state,
                    "parameter": w.is_parameter,
                    **({"passing": True} if w.is_passing else {}),
                }
                for name, w in self.weights.items()
            },
            "attributes": dict(self.attributes),
            "members": {name: {"bytes": m.size, "blake2b": m.checksum} for name, m in self.members.items()},
        }
        return json.dumps(document, indent=1, allow_nan=False).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """The manifest of a text.

        Raises:
            FormatVersionError: another version of the format wrote it.
            DamagedFileError: it is not of the form; the message says where.
        """
        whole = parse_json(text)
        known = dict(whole.entries())
        for name in ("format", "format_version"):
            if name not in known:
                whole.record("format", "format_version", optional=tuple(known))
        known["format"].one_of(FORMAT)
        version = known["format_version"].whole(1)
        if version != FORMAT_VERSION:
            raise FormatVersionError(
                f"this file has version {version} of the .tport format; this runtime reads version {FORMAT_VERSION}. "
                + ("Update torchport-runtime." if version > FORMAT_VERSION else "Save the module again.")
            )
        fields = whole.record(
            *("format", "format_version", "backend", "versions", "target", "fallback"),
            *("methods", "weights", "attributes", "members"),
        )
        return cls(
            fields["backend"].text(),
            fields["versions"].map_of(Field.text),
            fields["target"].text(),
            fields["fallback"].one_of("error", "interpreter"),
            fields["methods"].map_of(_method_from_json),
            fields["weights"].map_of(_weight_from_json),
            fields["attributes"].map_of(lambda f: f.value),
            fields["members"].map_of(_member_from_json),
        )


def _method_to_json(m: Method) -> Json:
    return {
        "graph": m.graph,
        "partitions": {
            name: {"backend": p.backend, "payload": p.payload, "graph": p.graph, "nodes": p.node_count}
            for name, p in m.partitions.items()
        },
        "arguments": [{kind: which} for kind, which in m.arguments],
        "results": [{kind: which} for kind, which in m.results],
        "numbers": list(m.numbers),
        "inputs": [_slot_to_json(s) for s in m.inputs],
        "outputs": [_slot_to_json(s) for s in m.outputs],
        "symbols": {n: {"leaf": s.leaf, "dim": s.dim, "min": s.low, "max": s.high} for n, s in m.symbols.items()},
        "in_tree": m.in_tree.to_json(),
        "out_tree": m.out_tree.to_json(),
        "parameters": [
            {"name": p.name, "kind": p.kind, **({"default": p.default} if p.has_default else {})} for p in m.parameters
        ],
        "training": m.training,
        "options": m.options,
        "refusals": [{"op": r.op, "location": r.location, "reason": r.reason} for r in m.refusals],
    }


def _method_from_json(whole: Field) -> Method:
    f = whole.record(
        *("graph", "partitions", "arguments", "results", "numbers", "inputs", "outputs", "symbols"),
        *("in_tree", "out_tree", "parameters", "training", "options", "refusals"),
    )
    return Method(
        f["graph"].text(),
        f["partitions"].map_of(_partition_from_json),
        f["arguments"].list_of(lambda x: _pair(x, "user", "weight")),
        f["results"].list_of(lambda x: _pair(x, "user", "state", "input")),
        f["numbers"].list_of(_number),
        f["inputs"].list_of(lambda x: _slot_from_json(x, "tensor", "constant", "int")),
        f["outputs"].list_of(lambda x: _slot_from_json(x, "tensor", "constant", "size")),
        f["symbols"].map_of(_symbol_from_json),
        Tree.from_json(f["in_tree"]),
        Tree.from_json(f["out_tree"]),
        f["parameters"].list_of(_parameter_from_json),
        f["training"].flag(),
        f["options"].value,
        f["refusals"].list_of(_refusal_from_json),
    )


def _pair(whole: Field, *kinds: str) -> tuple[str, int | str]:
    kind, which = whole.tag(*kinds)
    return kind, which.whole() if kind in ("user", "input") else which.text()


def _number(whole: Field) -> Json:
    if type(whole.value) not in (str, int, float, bool, dict):
        whole.fail("an expression or a number")
    if type(whole.value) is dict:
        parts = whole.record("real", "imag")
        return {k: v.of(float, "a number") for k, v in parts.items()}
    return whole.value


def _slot_to_json(slot: Slot) -> Json:
    if slot.kind != "tensor":
        return {slot.kind: slot.value}
    return {"tensor": {"dtype": slot.dtype, "sizes": list(slot.sizes)}}


def _slot_from_json(whole: Field, *kinds: str) -> Slot:
    kind, value = whole.tag(*kinds)
    if kind == "tensor":
        fields = value.record("dtype", "sizes")
        return Slot(kind, fields["dtype"].text(), fields["sizes"].list_of(_size))
    return Slot(kind, value=value.value if kind == "constant" else value.text())


def _size(whole: Field) -> int | str:
    return whole.text() if type(whole.value) is str else whole.whole()


def _symbol_from_json(whole: Field) -> Symbol:
    f = whole.record("leaf", "dim", "min", "max")
    return Symbol(
        f["leaf"].whole(),
        None if f["dim"].value is None else f["dim"].whole(),
        f["min"].whole(),
        None if f["max"].value is None else f["max"].whole(),
    )


_PARAMETER_KINDS = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "KEYWORD_ONLY", "VAR_KEYWORD")


def _parameter_from_json(whole: Field) -> Parameter:
    f = whole.record("name", "kind", optional=("default",))
    name = f["name"].text()
    if not name.isidentifier():
        f["name"].fail("a name")
    default = f.get("default")
    return Parameter(
        name, f["kind"].one_of(*_PARAMETER_KINDS), default is not None, None if default is None else default.value
    )


def _partition_from_json(whole: Field) -> Partition:
    f = whole.record("backend", "payload", "graph", "nodes")
    return Partition(f["backend"].text(), f["payload"].text(), f["graph"].text(), f["nodes"].whole())


def _refusal_from_json(whole: Field) -> Refusal:
    f = whole.record("op", "location", "reason")
    return Refusal(f["op"].text(), f["location"].text(), f["reason"].text())


def _weight_from_json(whole: Field) -> Weight:
    f = whole.record("shares", "state", "parameter", optional=("passing",))
    return Weight(f["shares"].text(), f["state"].flag(), f["parameter"].flag(), "passing" in f and f["passing"].flag())


def _member_from_json(whole: Field) -> Member:
    f = whole.record("bytes", "blake2b")
    return Member(f["bytes"].whole(), f["blake2b"].text())
