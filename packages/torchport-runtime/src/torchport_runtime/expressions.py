"""Integer expressions over symbols, parsed into functions; nothing of their text is executed."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from torchport_runtime.errors import DamagedFileError, InvalidArgumentError

Expression = Callable[[Sequence[int]], int]

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(//|[-+*%(),]))")
_SUMS = {"+": operator.add, "-": operator.sub}
_PRODUCTS = {"*": operator.mul, "//": operator.floordiv, "%": operator.mod}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}
_DEEPEST = 64
_LARGEST = 2**63 - 1
"""The largest whole number that a graph takes: they are of 64 bits."""


def parse_expression(text: str, symbols: Mapping[str, int]) -> Expression:
    """The function that an expression is of the symbols' values.

    Args:
        text: whole numbers, symbols, ``+ - * // %``, parentheses, ``min(…)``, ``max(…)``.
        symbols: name → position among the values.

    Raises:
        DamagedFileError: the text is no such expression.
    """
    return _Parser(text, symbols).whole()


def check_range(
    method: str, symbol: str, place: tuple[int, int | None], ends: tuple[int, int | None], value: int
) -> None:
    """Accepts the value of a symbol if the method was captured for it.

    Args:
        method: its name, for messages.
        symbol: its name.
        place: the flat input that has it, and the dimension; ``None`` where the input is a number itself.
        ends: the lowest and the highest value; ``None`` for all that a graph takes.
        value: the value.

    Raises:
        InvalidArgumentError: the method was not.
    """
    low, high = ends
    most = _LARGEST if high is None else high
    if low <= value <= most:
        return
    leaf, dim = place
    what = f"input {leaf}" if dim is None else f"size {dim} of input {leaf}"
    raise InvalidArgumentError(
        f"{method}: {what} is {value}; the method was captured for {symbol} from {low} "
        + ("upwards" if value < low and high is None else f"to {most}")
    )


class _Parser:
    def __init__(self, text: str, symbols: Mapping[str, int]) -> None:
        self._text = text
        self._symbols = symbols
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                self._fail(f"unexpected {text[at]!r}")
            self._tokens.append(match[1] or match[2] or match[3])
            at = match.end()
        self._tokens.append("")
        self._at = 0

    def whole(self) -> Expression:
        found = self._sum(0)
        if self._peek():
            self._fail(f"unexpected {self._peek()!r}")
        return found

    def _peek(self) -> str:
        return self._tokens[self._at]

    def _next(self) -> str:
        token = self._tokens[self._at]
        self._at += token != ""
        return token

    def _sum(self, depth: int) -> Expression:
        found = self._product(depth)
        while self._peek() in _SUMS:
            found = _combined(_SUMS[self._next()], found, self._product(depth))
        return found

    def _product(self, depth: int) -> Expression:
        found = self._factor(depth)
        while self._peek() in _PRODUCTS:
            found = _combined(_PRODUCTS[self._next()], found, self._factor(depth))
        return found

    def _factor(self, depth: int) -> Expression:
        if depth > _DEEPEST:
            self._fail("it is nested too deep")
        token = self._next()
        if token == "-":
            inner = self._factor(depth + 1)
            return lambda values: -inner(values)
        if token == "(":
            found = self._sum(depth + 1)
            self._expect(")")
            return found
        if token.isdigit():
            number = int(token[:19])
            return lambda values: number
        if token in _FUNCTIONS:
            function = _FUNCTIONS[token]
            self._expect("(")
            parts = [self._sum(depth + 1)]
            while self._peek() == ",":
                self._next()
                parts.append(self._sum(depth + 1))
            self._expect(")")
            return lambda values: function([p(values) for p in parts])
        position = self._symbols.get(token)
        if position is None:
            self._fail(f"there is no symbol {token!r}" if token else "it ends early")
        return operator.itemgetter(position)

    def _expect(self, token: str) -> None:
        if self._next() != token:
            self._fail(f"expected {token!r}")

    def _fail(self, why: str) -> NoReturn:
        raise DamagedFileError(f"the expression {self._text!r} cannot be read: {why}")


def _combined(function: Callable[[int, int], int], a: Expression, b: Expression) -> Expression:
    return lambda values: function(a(values), b(values))
