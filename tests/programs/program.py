"""A program as data: lines of Python, and the names whose tensors are compared when it has run.

The same text is executed and printed, so a failure is a test as it stands.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statement:
    """One line of a program.

    Attributes:
        family: what kind of statement it is, such as ``view``.
        name: what it does in particular, such as ``narrow``.
        source: the line.
        refused: the name for the text of eager's error; empty where eager accepts the line.
    """

    family: str
    name: str
    source: str
    refused: str = ""

    @property
    def lines(self) -> str:
        """The line as it stands in the program: a refused one has its error caught."""
        return f"with refused() as {self.refused}:\n    {self.source}" if self.refused else self.source


@dataclass(frozen=True, slots=True)
class Program:
    """Statements, then two threads where there are any, then what is compared.

    Attributes:
        statements: what runs first.
        results: expressions of what is compared.
        threads: programs that run at once afterwards; they read the tensors of this one.
    """

    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    threads: tuple[Program, ...] = ()

    def walk(self) -> Iterator[Statement]:
        """All statements, those of the threads too."""
        yield from self.statements
        for thread in self.threads:
            yield from thread.walk()

    @property
    def source(self) -> str:
        """The function ``program(D, sync)``."""
        return self._function("program", "D: str, sync: Callable[[], None]")

    def _function(self, name: str, parameters: str) -> str:
        names = [f"thread_{i}" for i in range(len(self.threads))]
        body = [s.lines for s in self.statements]
        body += [thread._function(n, "") for n, thread in zip(names, self.threads, strict=True)]
        results = list(self.results)
        if names:
            body.append(f"concurrent = at_once({', '.join(names)})")
            results.append("concurrent")
        errors = [s.refused for s in self.statements if s.refused]
        body.append(f"return [{', '.join(results + errors)}]")
        return f"def {name}({parameters}) -> object:\n{textwrap.indent(chr(10).join(body), '    ')}"


def as_test(program: Program) -> str:
    """The program as a test, to be pasted into ``test_found_programs.py``."""
    source = program.source
    name = hashlib.sha256(source.encode()).hexdigest()[:8]
    return f"def test_program_{name}() -> None:\n{textwrap.indent(source, '    ')}\n\n    check_program(program)\n"
