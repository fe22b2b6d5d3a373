"""A call's arguments: bound to the signature, flattened as at the capture, checked, and the results put together."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchport.aot.captured import Constant
from torchport.aot.method import Method
from torchport.aot.signatures import obstacle
from torchport.aot.tree_specs import tree_of_spec
from torchport.errors import InvalidArgumentError, SavedFileError
from torchport.ir.shape import dtype_name
from torchport.ir.size_expression import SizeExpression
from torchport_runtime.expressions import Expression, check_range, parse_expression


class Arguments:
    """What a method takes.

    Args:
        method: the method.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._signature = inspect.Signature(method.parameters)
        args, kwargs = method.in_spec.children()
        self._plain = len(args.children()) if all(c.is_leaf() for c in args.children()) and not kwargs.context else -1
        self._positional = len(args.children())
        self._keywords = tuple(kwargs.context)
        self._positions = {name: i for i, name in enumerate(method.symbols)}
        self._checks = [self._check_of(i, wanted) for i, wanted in enumerate(method.inputs)]
        self._sizes = [(s.leaf, s.dim, s.low, s.high, name) for name, s in method.symbols.items()]

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The flat inputs of a call.

        Raises:
            InvalidArgumentError: they do not fit the signature, or are nested otherwise than at the capture.
        """
        if not kwargs and len(args) == self._plain and not any(type(a) in pytree.SUPPORTED_NODES for a in args):
            return list(args)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            why = obstacle(self._signature, args, kwargs)
            raise InvalidArgumentError(f"{self._method.name}{self._signature}: {why}") from None
        bound.apply_defaults()
        given = self._as_captured(bound)
        leaves, spec = pytree.tree_flatten(given)
        if spec == self._method.in_spec:
            return leaves
        try:
            # Keys in another order, and classes that are known by their names, since a file has none.
            return tree_of_spec(self._method.in_spec).flatten(given)
        except (InvalidArgumentError, SavedFileError):
            raise InvalidArgumentError(
                f"{self._method.name} was captured with arguments of the form {_form(self._method.in_spec)}; these are "
                f"{_form(spec)}. Capture another method for them, or pass them so."
            ) from None

    def _as_captured(self, bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, positional and by name as they were at the capture; defaults beyond are dropped."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            value = bound.arguments.get(name)
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional += value or ()
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value or {})
            elif name in self._keywords:
                named[name] = value
            elif parameter.kind is not inspect.Parameter.KEYWORD_ONLY and len(positional) < self._positional:
                positional.append(value)
            elif value is not parameter.default:
                raise InvalidArgumentError(
                    f"{self._method.name}: {name}={value!r:.60} was not given when the method was captured, so it has "
                    f"its default there, {parameter.default!r:.60}. Capture the method with this argument."
                )
        return tuple(positional), {k: named[k] for k in self._keywords if k in named}

    def symbols(self, leaves: Sequence[Any]) -> list[int]:
        """The values of the symbols.

        Raises:
            InvalidArgumentError: one is outside of the range that the capture allows.
        """
        values = []
        for leaf, dim, low, high, name in self._sizes:
            try:
                value = _whole(leaves[leaf]) if dim is None else leaves[leaf].shape[dim]
            except (AttributeError, IndexError, TypeError):
                self._checks[leaf](leaves[leaf], [0] * len(self._sizes))
                raise
            check_range(self._method.name, name, (leaf, dim), (low, high), value)
            values.append(value)
        return values

    def check(self, leaves: Sequence[Any], symbols: Sequence[int]) -> None:
        """Accepts inputs that are what the method was captured for.

        Raises:
            InvalidArgumentError: they are not: dtype, sizes, device, or a value that was a constant at the capture.
        """
        for check, leaf in zip(self._checks, leaves, strict=True):
            check(leaf, symbols)

    def check_apart(self, leaves: Sequence[Any], written: Sequence[int]) -> None:
        """Refuses inputs that share memory with one that the method writes to: they were apart at the capture.

        Raises:
            InvalidArgumentError: two do.
        """
        extents = {i: _extent(leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        for i in written:
            begin, end = extents[i]
            for j, (first, last) in extents.items():
                if i != j and first < end and begin < last:
                    raise InvalidArgumentError(
                        f"{self._method.name} writes to input {i}, which shares memory with input {j}; they were two "
                        "tensors when the method was captured. Pass a clone of one of them."
                    )

    def _check_of(self, index: int, wanted: Any) -> Callable[[Any, Sequence[int]], None]:
        name = self._method.name
        if isinstance(wanted, Constant):
            return lambda leaf, symbols: self._check_constant(index, wanted.value, leaf)
        kind, sizes = wanted
        if kind == "int":
            return lambda leaf, symbols: self._check_whole(index, leaf)
        text = f"{dtype_name(kind)}[{', '.join(map(str, sizes))}]"
        fixed = torch.Size(sizes) if all(isinstance(n, int) for n in sizes) else None
        parsed = [None if isinstance(n, int) else parse_expression(n, self._positions) for n in sizes]

        def check(leaf: Any, symbols: Sequence[int]) -> None:
            if not isinstance(leaf, torch.Tensor):
                raise InvalidArgumentError(
                    f"{name}: input {index} is a {type(leaf).__name__}; a tensor {text} is wanted"
                )
            if leaf.dtype is kind and leaf.device.type == "cpu" and leaf.layout is torch.strided:
                if leaf.shape == fixed:
                    return
                if fixed is None and len(leaf.shape) == len(sizes):
                    expected = [n if p is None else p(symbols) for n, p in zip(sizes, parsed, strict=True)]
                    if list(leaf.shape) == expected:
                        return
            layout = "" if leaf.layout is torch.strided else f"{str(leaf.layout).removeprefix('torch.')} "
            found = f"{layout}{dtype_name(leaf.dtype)}[{', '.join(map(str, leaf.shape))}] on {leaf.device}"
            raise InvalidArgumentError(f"{name}: input {index} is {found}; the method was captured for {text} on cpu")

        return check

    def _check_whole(self, index: int, leaf: Any) -> None:
        try:
            _whole(leaf)
        except TypeError:
            raise InvalidArgumentError(
                f"{self._method.name}: input {index} is {leaf!r:.60}; a whole number is wanted"
            ) from None

    def _check_constant(self, index: int, wanted: Any, leaf: Any) -> None:
        if type(leaf) is not type(wanted) or leaf != wanted:
            raise InvalidArgumentError(
                f"{self._method.name}: input {index} is {leaf!r:.60}; it was {wanted!r:.60} when the method was "
                "captured, and became part of it. Capture another method for this value."
            )


class Results:
    """How a method's results are put together.

    Args:
        method: the method.
    """

    def __init__(self, method: Method) -> None:
        self._spec = method.out_spec
        positions = {name: i for i, name in enumerate(method.symbols)}
        self._leaves: list[Any] = [
            parse_expression(o.text, positions) if isinstance(o, SizeExpression) else o for o in method.outputs
        ]
        self._single = method.out_spec.is_leaf() and method.outputs == [None]

    def unflatten(self, tensors: Sequence[Any], symbols: Sequence[int]) -> Any:
        """The results as the method returned them at the capture.

        Args:
            tensors: those among the flat outputs, in order.
            symbols: the values of the symbols.
        """
        if self._single:
            return tensors[0]
        found = iter(tensors)
        leaves = [
            next(found) if o is None else o.value if isinstance(o, Constant) else o(symbols) for o in self._leaves
        ]
        return pytree.tree_unflatten(leaves, self._spec)


def number_expressions(method: Method, numbers: Sequence[Any]) -> list[Expression | int | float | bool | complex]:
    """What the numbers of a method's graph are: functions of the symbols, or what they were at the capture."""
    positions = {name: i for i, name in enumerate(method.symbols)}
    return [parse_expression(n.text, positions) if isinstance(n, SizeExpression) else n for n in numbers]


def _whole(value: Any) -> int:
    """A whole number as one; ``numpy``'s are too, and no truth value or tensor is."""
    if isinstance(value, bool | torch.Tensor):
        raise TypeError(f"{value!r} is no whole number")
    return operator.index(value)


def _extent(t: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte of a tensor and of the one behind its last."""
    if not t.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


def _form(spec: pytree.TreeSpec) -> str:
    return str(pytree.tree_unflatten(["*"] * spec.num_leaves, spec)).replace("'*'", "*")
