"""An operator with everything about its arguments that is known while tracing: the memoised part of a node.

A training loop makes the same calls over and over: the same overload, the same static arguments, operands of the same
shapes. Each such combination is one interned :class:`Call`; it knows the shapes of its outputs (so nothing is inferred
twice) and a digest that is equal in every process. A node is then a call, its operands and its numbers.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.ir.shape import Shape


class Operand:
    """The place of a tensor in a call's arguments: the node's ``operands[index]``. Interned by index."""

    __slots__ = ("index",)
    index: int

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"%{self.index}"


class Number:
    """The place of a Python number in a call's arguments: the node's ``numbers[index]``.

    A number is an input of the graph, never part of its hash: a learning rate that changes costs no compile. Its type
    (bool, int, float, complex) is static, because it takes part in dtype promotion.
    """

    __slots__ = ("index", "type")
    index: int
    type: builtins.type

    def __init__(self, index: int, type: builtins.type) -> None:
        self.index = index
        self.type = type

    def __repr__(self) -> str:
        return f"${self.index}:{self.type.__name__}"


_OPERANDS = [Operand(i) for i in range(64)]
_NUMBERS: dict[tuple[int, type], Number] = {}


def operand(index: int) -> Operand:
    """The interned :class:`Operand` of this index."""
    while index >= len(_OPERANDS):
        _OPERANDS.append(Operand(len(_OPERANDS)))
    return _OPERANDS[index]


def number(index: int, type: type) -> Number:
    """The interned :class:`Number` of this index and type."""
    return _NUMBERS.setdefault((index, type), Number(index, type))


class SpecialOp:
    """An operator of ours that no ATen overload stands for."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


DEVICE_DATA = SpecialOp("port.device_data")
"""A leaf: data that is on the device already. It becomes a parameter of the computation."""
SCALAR = SpecialOp("port.scalar")
"""A leaf: a 0-dim tensor of a given dtype with the value of one number."""
TENSOR_LIST = SpecialOp("port.tensor_list")
"""Several values as one: its outputs are its operands."""
SPECIAL_OPS = {op.name: op for op in (DEVICE_DATA, SCALAR, TENSOR_LIST)}

Op = OpOverload | SpecialOp

_DRAWS_NOTHING = frozenset({torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default})
"""Operators that are tagged as random for the sake of a dropout that they refuse."""


def fill_template(template: Any, operands: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """An argument with every :class:`Operand` and :class:`Number` replaced by what stands at its index."""
    if type(template) is Operand:
        return operands[template.index]
    if type(template) is Number:
        return numbers[template.index]
    if type(template) is tuple:
        return [fill_template(x, operands, numbers) for x in template]
    return template


class Call:
    """One operator application, without its operands and numbers.

    Attributes:
        op: an ATen overload (functional), or a :class:`SpecialOp`.
        args: positional arguments; tensors are :class:`Operand`, numbers :class:`Number`; lists are tuples.
        kwargs: the same for keyword arguments, as sorted (name, value) pairs. Never ``device``, ``pin_memory`` or
            ``generator``: a backend supplies its own device, and random numbers come from the graph's generator.
        inputs: the shapes of the operands, in order.
        outputs: the shapes of the results, flattened; ``None`` where the operator returns no tensor.
        is_random: draws from the device's generator; such nodes run in order and are never dropped.
        digest: 64 bits of BLAKE2b over the text of all the above: equal in every process.
        width: how many value numbers a node of it takes: one per output, and one where there is none.
    """

    __slots__ = ("args", "digest", "inputs", "is_random", "kwargs", "name", "op", "outputs", "width")

    def __init__(
        self,
        op: Op,
        args: tuple[Any, ...] = (),
        kwargs: tuple[tuple[str, Any], ...] = (),
        inputs: tuple[Shape, ...] = (),
        outputs: tuple[Shape | None, ...] = (),
    ) -> None:
        self.op = op
        self.name = str(op)
        self.args = args
        self.kwargs = kwargs
        self.inputs = inputs
        self.outputs = outputs
        self.width = len(outputs) or 1
        self.is_random = (
            isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags and op not in _DRAWS_NOTHING
        )
        text = f"{self.name}{args!r}{kwargs!r}{inputs!r}{outputs!r}"
        self.digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")

    def bind(self, operands: Sequence[Any], numbers: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with every :class:`Operand` and :class:`Number` replaced by what stands at its index."""
        positional = [fill_template(a, operands, numbers) for a in self.args]
        return positional, {k: fill_template(v, operands, numbers) for k, v in self.kwargs}

    def __repr__(self) -> str:
        inner = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs]
        return f"{self.name}({', '.join(inner)})"
