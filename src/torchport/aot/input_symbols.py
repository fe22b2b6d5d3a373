"""Which sizes of a capture's inputs are symbols, and how the others follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from torchport.aot.captured import Symbol
from torchport.aot.dim_names import SymbolNames
from torchport.errors import CaptureError

_NO_LIMIT = 2**62


def name_symbols(method: str, values: Sequence[Any], names: SymbolNames, program: ExportedProgram) -> dict[str, Symbol]:
    """The symbols of a method, by our names.

    A size that torch knows by a symbol of its own is one. Where torch's symbol is no size, as ``n`` is none where an
    input has ``2*n + 1``, that size is our symbol, and ``n`` follows from it.

    Args:
        method: its name, for messages.
        values: for each flat input what torch captured it as.
        names: torch's name of a symbol → ours, or how it follows from ours; added to.
        program: what was captured.

    Raises:
        CaptureError: a size follows from several others, or not by multiplying and adding.
    """
    symbols: dict[str, Symbol] = {}
    places = list(_places(values))
    for leaf, dim, expression in places:
        if expression.is_Symbol and str(expression) not in names:
            name = names.add(str(expression), leaf, dim)
            symbols[name] = Symbol(leaf, dim, *_range(program, expression))
    for leaf, dim, expression in places:
        missing = [x for x in expression.free_symbols if str(x) not in names]
        if not missing:
            continue
        factor, offset = _affine(expression)
        if factor < 1 or dim is None:
            where = f"input {leaf}" if dim is None else f"size {dim} of input {leaf}"
            raise CaptureError(
                f"{method} cannot be captured: {where} is {expression}, and {' and '.join(map(str, missing))} "
                "cannot be told from it. Give each Dim a size of its own, or one that is it times a whole number plus "
                "a whole number, such as 2 * Dim('n') + 1."
            )
        name = names.add(str(expression), leaf, dim)
        names[str(missing[0])] = _solved(name, factor, offset)
        symbols[name] = Symbol(leaf, dim, *_range(program, expression))
    return symbols


def _places(values: Sequence[Any]) -> Iterator[tuple[int, int | None, Any]]:
    """Leaf, dimension and expression of every size that torch has an expression for."""
    for leaf, value in enumerate(values):
        sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        yield from ((leaf, dim, n.node.expr) for dim, n in sizes if isinstance(n, torch.SymInt))


def _range(program: ExportedProgram, expression: Any) -> tuple[int, int | None]:
    bounds = program.range_constraints.get(expression)
    if bounds is None:
        return 0, None
    high = int(bounds.upper) if bounds.upper.is_Integer and bounds.upper < _NO_LIMIT else None
    return int(bounds.lower), high


def _affine(expression: Any) -> tuple[int, int]:
    """Of ``factor * symbol + offset`` both numbers; zeros for anything else."""
    if len(expression.free_symbols) != 1:
        return 0, 0
    (symbol,) = expression.free_symbols
    whole = expression.expand()
    factor, offset = whole.coeff(symbol, 1), whole.coeff(symbol, 0)
    if not (factor.is_Integer and offset.is_Integer) or (whole - factor * symbol - offset).expand() != 0:
        return 0, 0
    return int(factor), int(offset)


def _solved(name: str, factor: int, offset: int) -> str:
    shifted = f"({name} - {offset})" if offset > 0 else f"({name} + {-offset})" if offset < 0 else name
    return shifted if factor == 1 else f"({shifted} // {factor})"
