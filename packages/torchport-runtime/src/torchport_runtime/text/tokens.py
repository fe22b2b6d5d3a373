"""A graph's text as tokens, line by line."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from torchport_runtime.errors import IRSyntaxError

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r]+)
  | (?P<comment>\#.*)
  | (?P<value>%\d{1,18})
  | (?P<number>\$\d{1,18})
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<float>-?\d+\.\d*(?:[eE][+-]?\d+)?|-?\d+[eE][+-]?\d+|-inf\b)
  | (?P<int>-?\d+)
  | (?P<name>[A-Za-z_]\w*(?:\.\w+)*)
  | (?P<opaque><.*)
  | (?P<mark>[()\[\]{},:=@?])
    """,
    re.ASCII | re.VERBOSE,
)


class Token(NamedTuple):
    """A piece of a line: its kind, its text, its column from 1. At the end of a line the kind is ``end``."""

    kind: str
    text: str
    column: int


class TokenStream:
    """The tokens of a text. It stays on one line until it is told to go on.

    Attributes:
        comment: the comment of the current line, which is not among its tokens; ``None`` without.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._row = -1
        self._tokens: list[Token] = []
        self._at = 0
        self.comment: Token | None = None

    def skip_lines(self) -> None:
        """At the end of a line, goes on to the next one that has tokens; stays at the end of the last."""
        while self._at >= len(self._tokens) and self._row + 1 < len(self._lines):
            self._row += 1
            self._read_line()

    def _read_line(self) -> None:
        line = self._lines[self._row]
        self._tokens = []
        self._at = 0
        self.comment = None
        at = 0
        while at < len(line):
            match = _TOKEN.match(line, at)
            kind = match.lastgroup if match else None
            if match is None or kind is None:
                what = "the string has no end" if line[at] == '"' else f"unexpected character {line[at]!r}"
                self.fail(what, Token("end", line[at], at + 1))
            at = match.end()
            if kind == "comment":
                self.comment = Token(kind, match[0], match.start() + 1)
            elif kind != "space":
                self._tokens.append(Token(kind, match[0], match.start() + 1))

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or the one ``ahead`` after it, without taking it."""
        at = self._at + ahead
        if at < len(self._tokens):
            return self._tokens[at]
        last = self._tokens[-1] if self._tokens else Token("end", "", 1)
        return Token("end", "", last.column + len(last.text))

    def next(self) -> Token:
        """The next token, taken."""
        token = self.peek()
        self._at += token.kind != "end"
        return token

    def accept(self, text: str) -> bool:
        """Takes the next token if it is this one, and says whether it was."""
        found = self._at < len(self._tokens) and self._tokens[self._at].text == text
        self._at += found
        return found

    def expect(self, text: str) -> Token:
        """Takes the next token, which must be this one."""
        token = self.next()
        if token.text != text:
            found = "the end of the line" if token.kind == "end" else repr(token.text)
            self.fail(f"expected {text!r}, found {found}", token)
        return token

    def end_line(self) -> None:
        """The line must have no more tokens."""
        token = self.peek()
        if token.kind != "end":
            self.fail(f"expected the end of the line, found {token.text!r}", token)

    def count_in_line(self, kind: str) -> int:
        """How many tokens of this kind the current line has."""
        return sum(token.kind == kind for token in self._tokens)

    def fail(self, message: str, token: Token) -> NoReturn:
        """Raises the :class:`IRSyntaxError` of a message about a token of the current line."""
        row = max(self._row, 0)
        raise IRSyntaxError(message, row + 1, token.column, self._lines[row].rstrip("\r"))
