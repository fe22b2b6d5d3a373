"""Rules of this code base that no linter has, over every module of the package."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from architecture.violations import none_of

ROOT = Path(__file__).parents[2]
LONG_FILE_LINES = 500


def sources() -> Iterator[tuple[Path, str, ast.Module]]:
    for file in sorted((ROOT / "src").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        yield file.relative_to(ROOT), text, ast.parse(text)


def is_unexplained_long_file(text: str) -> bool:
    """Above the bound, and the docstring does not say why: it must speak of the file's lines."""
    too_long = text.count("\n") > LONG_FILE_LINES
    return too_long and " lines" not in (ast.get_docstring(ast.parse(text)) or "")


def bare_excepts(tree: ast.Module) -> list[int]:
    return [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and n.type is None]


def swallowed_exceptions(tree: ast.Module) -> list[int]:
    """Handlers of any exception, or of a failed import, that do nothing: what is broken then looks absent."""
    broad = {"Exception", "BaseException", "ImportError", "ModuleNotFoundError"}
    return [
        n.lineno
        for n in ast.walk(tree)
        if isinstance(n, ast.ExceptHandler)
        and broad & {name.id for name in ast.walk(n.type or n) if isinstance(name, ast.Name)}
        and all(isinstance(s, ast.Pass | ast.Continue) or is_constant(s) for s in n.body)
    ]


def is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def prints(tree: ast.Module) -> list[int]:
    return [
        n.lineno
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "print"
    ]


def test_a_file_above_500_lines_says_why_in_its_docstring() -> None:
    none_of([f"{file}: {text.count(chr(10))} lines" for file, text, _ in sources() if is_unexplained_long_file(text)])


def test_no_except_is_bare() -> None:
    none_of([f"{file}:{line}" for file, _, tree in sources() for line in bare_excepts(tree)])


def test_no_broad_except_is_silent() -> None:
    none_of([f"{file}:{line}" for file, _, tree in sources() for line in swallowed_exceptions(tree)])


def test_only_the_command_prints() -> None:
    quiet = [(file, tree) for file, _, tree in sources() if "cli" not in file.parts]
    none_of([f"{file}:{line}" for file, tree in quiet for line in prints(tree)])


@pytest.mark.parametrize(
    ("check", "code"),
    [
        (bare_excepts, "try: f()\nexcept: raise"),
        (swallowed_exceptions, "try: f()\nexcept Exception: pass"),
        (swallowed_exceptions, "try: import jax\nexcept (OSError, ImportError): ..."),
        (prints, "def f():\n    print(1)"),
    ],
)
def test_the_checks_find_what_they_look_for(check: Callable[[ast.Module], list[int]], code: str) -> None:
    assert [2] == check(ast.parse(code))


def test_a_long_file_is_found_and_excused_by_a_reason() -> None:
    body = "x = 1\n" * (LONG_FILE_LINES + 1)
    assert is_unexplained_long_file(body)
    assert not is_unexplained_long_file('"""More than 500 lines: the table of dtypes is one piece."""\n' + body)
