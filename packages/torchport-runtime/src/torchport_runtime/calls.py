"""A call's arguments: bound, flattened, checked; and its results put together."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchport_runtime.arrays import array_of
from torchport_runtime.errors import InvalidArgumentError
from torchport_runtime.expressions import Expression, check_range, parse_expression
from torchport_runtime.interpreter.dtypes import NAMES
from torchport_runtime.manifest import Method, Slot


class Arguments:
    """What a method takes.

    Args:
        name: the method's.
        method: as it was saved.
    """

    def __init__(self, name: str, method: Method) -> None:
        self._name = name
        self._method = method
        self._tree = method.in_tree
        self._written = [int(which) for kind, which in method.results if kind == "input"]
        positional, named = method.in_tree.children
        self._count = len(positional.children)
        self._keywords = named.keys
        self._plain = not named.keys and all(c.kind == "leaf" for c in positional.children)
        self.signature = inspect.Signature(
            [
                inspect.Parameter(
                    p.name,
                    getattr(inspect.Parameter, p.kind),
                    default=p.default if p.has_default else inspect.Parameter.empty,
                )
                for p in method.parameters
            ]
        )
        positions = {symbol: i for i, symbol in enumerate(method.symbols)}
        self._sizes: list[list[int | Expression]] = [
            [parse_expression(n, positions) if isinstance(n, str) else n for n in slot.sizes] for slot in method.inputs
        ]

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The flat inputs of a call, tensors as arrays.

        Raises:
            InvalidArgumentError: they do not fit the signature, or are nested otherwise than at the capture.
        """
        if self._plain and not kwargs and len(args) == self._count:
            leaves = list(args)
        else:
            try:
                bound = self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise InvalidArgumentError(f"{self._name}{self.signature}: {error}") from None
            bound.apply_defaults()
            leaves = self._tree.flatten(self._as_captured(bound))
        for i in self._written:
            if isinstance(leaves[i], np.generic):
                raise self._unwritable(i, "which is a scalar")
        return [
            array_of(x) if slot.kind == "tensor" else x for x, slot in zip(leaves, self._method.inputs, strict=True)
        ]

    def _as_captured(self, bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            value = bound.arguments.get(name)
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional += value or ()
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value or {})
            elif name in self._keywords:
                named[name] = value
            elif parameter.kind is not inspect.Parameter.KEYWORD_ONLY and len(positional) < self._count:
                positional.append(value)
            elif value is not parameter.default:
                raise InvalidArgumentError(
                    f"{self._name}: {name}={value!r:.60} was not given when the method was captured, so it has its "
                    "default there"
                )
        return tuple(positional), {k: named[k] for k in self._keywords if k in named}

    def check(self, leaves: Sequence[Any]) -> list[int]:
        """Accepts inputs that are what the method was captured for; the values of its symbols.

        Raises:
            InvalidArgumentError: they are not.
        """
        for i, (leaf, slot) in enumerate(zip(leaves, self._method.inputs, strict=True)):
            self._check_kind(i, leaf, slot)
        symbols = []
        for name, symbol in self._method.symbols.items():
            value = operator.index(leaves[symbol.leaf] if symbol.dim is None else leaves[symbol.leaf].shape[symbol.dim])
            check_range(self._name, name, (symbol.leaf, symbol.dim), (symbol.low, symbol.high), value)
            symbols.append(value)
        for i, (leaf, slot) in enumerate(zip(leaves, self._method.inputs, strict=True)):
            if slot.kind == "tensor":
                sizes = tuple([n if isinstance(n, int) else n(symbols) for n in self._sizes[i]])
                if leaf.shape != sizes:
                    self._fail(i, leaf, slot)
        for i in self._written:
            self._check_writable(i, leaves)
        return symbols

    def _check_writable(self, index: int, leaves: Sequence[Any]) -> None:
        """Accepts an input that the method writes to, if each of its elements is one of memory that is its own."""
        leaf = leaves[index]
        if not leaf.flags.writeable:
            raise self._unwritable(index, "which is read-only")
        if any(n > 1 and step == 0 for n, step in zip(leaf.shape, leaf.strides, strict=True)):
            raise self._unwritable(index, "of which several elements are one place in memory")
        for i, other in enumerate(leaves):
            if i != index and isinstance(other, np.ndarray) and np.may_share_memory(leaf, other):
                raise self._unwritable(index, f"which shares memory with input {i}")

    def _unwritable(self, index: int, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._name} writes to input {index}, {why}. Pass a copy of it.")

    def _check_kind(self, index: int, leaf: Any, slot: Slot) -> None:
        if slot.kind == "tensor":
            is_right = isinstance(leaf, np.ndarray) and NAMES.get(leaf.dtype) == slot.dtype
            if not is_right or leaf.ndim != len(slot.sizes):
                self._fail(index, leaf, slot)
        elif slot.kind == "constant":
            if type(leaf) is not type(slot.value) or leaf != slot.value:
                raise InvalidArgumentError(
                    f"{self._name}: input {index} is {leaf!r:.60}; it was {slot.value!r:.60} when the method was "
                    "captured, and became part of it"
                )
        elif type(leaf) is not int and not isinstance(leaf, np.integer):
            raise InvalidArgumentError(f"{self._name}: input {index} is {leaf!r:.60}; a whole number is wanted")

    def _fail(self, index: int, leaf: Any, slot: Slot) -> None:
        found = (
            f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]" if isinstance(leaf, np.ndarray) else type(leaf).__name__
        )
        raise InvalidArgumentError(
            f"{self._name}: input {index} is {found}; the method was captured for "
            f"{slot.dtype}[{', '.join(map(str, slot.sizes))}]"
        )


class Results:
    """How a method's results are put together.

    Args:
        method: as it was saved.
    """

    def __init__(self, method: Method) -> None:
        positions = {symbol: i for i, symbol in enumerate(method.symbols)}
        self._slots = [
            (slot.kind, parse_expression(slot.value, positions) if slot.kind == "size" else slot.value)
            for slot in method.outputs
        ]
        self._build = method.out_tree.builder()

    def build(self, arrays: Sequence[Any], symbols: Sequence[int]) -> Any:
        """The results as the method returned them at the capture."""
        found = iter(arrays)
        leaves = [
            next(found) if kind == "tensor" else value(symbols) if kind == "size" else value
            for kind, value in self._slots
        ]
        return self._build(iter(leaves))
