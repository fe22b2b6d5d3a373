"""What the kernels need to know of an ATen overload, read from its schema once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten


class Kind:
    """How an argument takes part in a call. Plain integers: kernels compare them for every argument of every call."""

    CONSTANT = 0
    TENSOR = 1
    TENSORS = 2
    NUMBER = 3
    """A Python number that the operator computes with: an input of the graph."""
    IGNORED = 4
    """Device, pinned memory, layout: the device decides."""
    GENERATOR = 5
    NUMBERS = 6


_IGNORED = frozenset({"device", "pin_memory", "non_blocking"})
# Numbers that decide what an operator computes, or how large its result is, rather than what it computes with: they are
# constants of the graph. (operator, argument), or the argument of any operator.
_STATIC_NUMBERS = frozenset(
    {
        ("aten::pow", "exponent"),
        ("aten::float_power", "exponent"),
        ("aten::arange", "start"),
        ("aten::arange", "end"),
        ("aten::arange", "step"),
        ("aten::range", "start"),
        ("aten::range", "end"),
        ("aten::range", "step"),
    }
)
_STATIC_NUMBER_NAMES = frozenset({"p", "ord"}) | {f"scales{x}" for x in ("", "_h", "_w", "_d")}

# Their results are sparse, which no graph holds: they run eagerly.
_MAKES_SPARSE = frozenset(
    {
        "aten::_to_sparse",
        "aten::_to_sparse_csr",
        "aten::_to_sparse_csc",
        "aten::_to_sparse_bsr",
        "aten::_to_sparse_bsc",
        "aten::sparse_mask",
    }
)

# In-place operators whose functional form has another name.
_FUNCTIONAL_NAMES = {
    "normal_": "normal_functional",
    "rrelu_with_noise_": "rrelu_with_noise_functional",
}
_FUNCTIONAL_OVERLOADS = {("bernoulli_", "float"): ("bernoulli", "p")}


@dataclass(frozen=True, slots=True)
class Mutation:
    """An argument that an operator writes to, and which of the functional form's results goes there."""

    position: int
    """Index among the schema's arguments."""
    name: str
    is_list: bool
    is_out: bool
    result: int


@dataclass(frozen=True, slots=True)
class Operator:
    """An overload, its functional form, and how its arguments and results are treated."""

    op: OpOverload
    functional: OpOverload | None
    kinds: tuple[int, ...]
    names: tuple[str, ...]
    keyword_kinds: dict[str, int]
    mutations: tuple[Mutation, ...]
    fresh_results: tuple[int, ...]
    """Indices of the functional form's results that are new tensors."""
    returns: tuple[str, ...]
    """For each result of ``op`` itself: ``tensor``, ``tensors`` or ``other``."""
    counter_name: str


def argument_kind(op: OpOverload, argument: Any) -> int:
    """The kind (:class:`Kind`) of one argument of a schema."""
    if argument.name in _IGNORED:
        return Kind.IGNORED
    text = str(argument.type)
    bare = text.removeprefix("Optional[").removesuffix("]") if text.startswith("Optional[") else text
    if bare == "Tensor":
        return Kind.TENSOR
    if bare in ("List[Tensor]", "List[Optional[Tensor]]"):
        return Kind.TENSORS
    if bare == "Generator":
        return Kind.GENERATOR
    if bare in ("number", "Scalar", "float", "complex"):
        name = argument.name
        # A bound or a probability of a random operator is checked when it is called, by the operator itself.
        if (
            torch.Tag.nondeterministic_seeded in op.tags
            or name in _STATIC_NUMBER_NAMES
            or (op._schema.name.removesuffix("_"), name) in _STATIC_NUMBERS
        ):
            return Kind.CONSTANT
        return Kind.NUMBER
    if bare == "List[number]":
        return Kind.NUMBERS
    return Kind.CONSTANT


@cache
def undefaulted(op: OpOverload) -> tuple[str, ...]:
    """Keyword arguments that have no default but may be ``None``: then a kernel is not given them, and must fill in."""
    return tuple(
        a.name
        for a in op._schema.arguments
        if a.kwarg_only
        and not a.has_default_value()
        and isinstance(a.type, torch.OptionalType)
        and argument_kind(op, a) is Kind.CONSTANT
    )


def _returns(op: OpOverload) -> tuple[str, ...]:
    kinds = []
    for r in op._schema.returns:
        text = str(r.type)
        kinds.append("tensor" if text == "Tensor" else "tensors" if text == "List[Tensor]" else "other")
    return tuple(kinds)


def describe(op: OpOverload) -> Operator:
    """Everything above for one overload."""
    arguments = op._schema.arguments
    positional = [a for a in arguments if not a.kwarg_only]
    mutated = [(i, a) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    functional: OpOverload | None = op
    mutations: tuple[Mutation, ...] = ()
    fresh = tuple(range(len(op._schema.returns)))
    if mutated:
        functional = find_functional(op)
        if functional is not None:
            mutations, fresh = _match(op, functional, mutated)
    if functional is not None and ("other" in _returns(functional) or op._schema.name in _MAKES_SPARSE):
        functional = None
    return Operator(
        op,
        functional,
        tuple(argument_kind(op, a) for a in positional),
        tuple(a.name for a in positional),
        {a.name: argument_kind(op, a) for a in arguments},
        mutations,
        fresh,
        _returns(op),
        op._schema.name.removeprefix("aten::"),
    )


def _match(
    op: OpOverload, functional: OpOverload, mutated: list[tuple[int, Any]]
) -> tuple[tuple[Mutation, ...], tuple[int, ...]]:
    """Which result of the functional form belongs to which written argument.

    Generated functional forms return the operator's own fresh results first, then the new contents of each written
    argument in order; forms of ``out=`` and in-place operators return just those. What is ``out=`` to an operator that
    writes to other arguments as well is a fresh result of its functional form, and comes first.
    """
    count = len(functional._schema.returns)
    fresh_count = count - len(mutated)
    mutated = sorted(mutated, key=lambda m: not m[1].is_out)
    mutations = tuple(
        Mutation(i, a.name, "List" in str(a.type), a.is_out, fresh_count + k) for k, (i, a) in enumerate(mutated)
    )
    return mutations, tuple(range(fresh_count))


def find_functional(op: OpOverload) -> OpOverload | None:
    """The overload without side effects that computes what ``op`` writes, or ``None`` when there is none."""
    packet_name = op._schema.name.split("::")[1]
    outs = {a.name for a in op._schema.arguments if a.is_out}
    namespace = getattr(torch.ops, op.namespace)
    candidates = []
    if outs:
        candidates.append(packet_name)
        candidates.append(packet_name + "_copy")
        candidates.append(packet_name + "_functional")
    else:
        overload = _FUNCTIONAL_OVERLOADS.get((packet_name, op._overloadname))
        if overload is not None:
            return getattr(getattr(namespace, overload[0]), overload[1])  # type: ignore[no-any-return]
        candidates.append(_FUNCTIONAL_NAMES.get(packet_name, packet_name.removesuffix("_")))
        if packet_name.startswith("__i"):
            candidates.append(packet_name.replace("__i", "__", 1))
        candidates.append(packet_name.removesuffix("_") + "_functional")
        candidates.append(packet_name + "_functional")
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments if a.name not in outs]
    n_mutated = sum(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)
    for name in candidates:
        packet = getattr(namespace, name, None)
        if packet is None:
            continue
        matches = []
        for overload_name in packet.overloads():
            candidate = getattr(packet, overload_name)
            schema = candidate._schema
            if any(a.alias_info is not None for a in schema.arguments):
                continue
            if len(schema.returns) < n_mutated:
                continue
            have = [(a.name, str(a.type)) for a in schema.arguments]
            if have == wanted or ([t for _, t in have] == [t for _, t in wanted] and not outs):
                matches.append((overload_name != op._overloadname, have != wanted, candidate))
            elif outs and [x for x in have if x[0] not in ("dtype", "layout", "device", "pin_memory")] == wanted:
                matches.append((True, True, candidate))
        if matches:
            matches.sort(key=lambda m: m[:2])
            return matches[0][2]  # type: ignore[no-any-return]
    return None
