"""Which line of the user's program made a node. Cheap to take, decoded only when somebody reads it."""

from __future__ import annotations

from types import CodeType


class SourceLocation:
    """A place in a user's program: a code object and the instruction in it, or a file and a line.

    Taking ``frame.f_lineno`` decodes a line table; a location keeps the instruction's offset and decodes on demand.
    """

    __slots__ = ("_code", "_instruction", "note")

    def __init__(self, code: CodeType, instruction: int, note: str = "") -> None:
        self._code = code
        self._instruction = instruction
        self.note = note

    @property
    def file(self) -> str:
        """The path of the source file, as Python has it."""
        return self._code.co_filename

    @property
    def line(self) -> int:
        """The line number, from 1; 0 when the code object has none."""
        index = self._instruction // 2
        for i, (start, _, _, _) in enumerate(self._code.co_positions()):
            if i == index:
                return start or 0
        return 0

    @property
    def function(self) -> str:
        """The qualified name of the function."""
        return self._code.co_qualname

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" ({self.note})" if self.note else "")

    def __repr__(self) -> str:
        return f"SourceLocation({self})"


class TextLocation:
    """A location read from a text: what :class:`SourceLocation` prints, kept as it is."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"TextLocation({self._text!r})"


Location = SourceLocation | TextLocation | None
