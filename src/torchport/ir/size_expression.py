"""Integers that follow from symbolic sizes: the value that they have now, and how they follow."""

from __future__ import annotations

from typing import Any


class SizeExpression(int):
    """A whole number with the expression that it is a value of, such as ``s0 * 16``.

    It is an ``int`` wherever one is wanted; in ``Node.numbers`` it tells who binds a graph's numbers how to find it.

    Attributes:
        text: the expression over symbols: whole numbers, ``+ - * // %``, ``min(…)``, ``max(…)``.
    """

    text: str

    def __new__(cls, value: int, text: str) -> SizeExpression:
        """The number of an expression."""
        self = super().__new__(cls, value)
        self.text = text
        return self


def expression_text(expression: Any, names: dict[str, str]) -> str:
    """The text of one of sympy's expressions over sizes.

    Args:
        expression: as ``SymInt.node.expr`` has it.
        names: torch's name of a symbol → ours.

    Raises:
        ValueError: it has a function that the text form lacks.
    """
    kind = type(expression).__name__
    if expression.is_Integer:
        return str(int(expression))
    if expression.is_Symbol:
        return names[str(expression)]
    parts = [expression_text(x, names) for x in expression.args]
    if kind == "Add":
        return f"({' + '.join(parts)})"
    if kind == "Mul":
        return f"({' * '.join(parts)})"
    if kind in ("FloorDiv", "CleanDiv"):
        return f"({parts[0]} // {parts[1]})"
    if kind in ("Mod", "PythonMod"):
        return f"({parts[0]} % {parts[1]})"
    if kind in ("Max", "Min"):
        return f"{kind.lower()}({', '.join(parts)})"
    if expression.is_Pow and expression.args[1].is_Integer and 0 < int(expression.args[1]) < 16:
        return f"({' * '.join([parts[0]] * int(expression.args[1]))})"
    raise ValueError(f"the size {expression} has no text: {kind} is none of + - * // % min max")
