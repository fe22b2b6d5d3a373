"""Reads the imports of a package without running it, and judges them against a table of layers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Import:
    """One import: which module imports which, where, and whether it is for the type checker only."""

    importer: str
    imported: str
    file: Path
    line: int
    type_checking: bool = False
    in_function: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.importer} imports {self.imported}"


def modules_of(source: Path) -> dict[str, Path]:
    """Every module below a folder of sources: dotted name → file."""
    modules = {}
    for file in sorted(source.rglob("*.py")):
        parts = list(file.relative_to(source).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        modules[".".join(parts)] = file
    return modules


def imports_of(modules: Mapping[str, Path]) -> list[Import]:
    """Every import of every module, our own resolved to the module that is meant."""
    return [found for name, file in modules.items() for found in _imports_of_module(name, file, modules)]


def _imports_of_module(name: str, file: Path, modules: Mapping[str, Path]) -> Iterator[Import]:
    is_package = file.name == "__init__.py"
    pending: list[tuple[ast.AST, bool, bool]] = [(ast.parse(file.read_text(encoding="utf-8")), False, False)]
    while pending:
        node, type_checking, in_function = pending.pop()
        for target in _targets(node, name, is_package, modules):
            yield Import(name, target, file, node.lineno, type_checking, in_function)  # type: ignore[attr-defined]
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            pending += [(child, True, in_function) for child in node.body]
            pending += [(child, type_checking, in_function) for child in node.orelse]
            continue
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        pending += [(child, type_checking, inside) for child in ast.iter_child_nodes(node)]


def _targets(node: ast.AST, importer: str, is_package: bool, modules: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = importer.split(".")
            parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
            base = ".".join([*parts, base] if base else parts)
        for alias in node.names:
            # `from package import module` means the module, not the package.
            inner = f"{base}.{alias.name}"
            yield inner if inner in modules else base
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            yield node.args[0].value


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def layer_of(module: str, package: str) -> str:
    """The layer that a module belongs to: the first name below the package, ``""`` for the package's own file.

    Each backend is a layer of its own (``backends.interpreter``), so that none imports another.
    """
    parts = module.split(".")[1:] if module.startswith(f"{package}.") else []
    return ".".join(parts[: 2 if parts[:1] == ["backends"] else 1])


def layer_violations(imports: Iterable[Import], package: str, allowed: Mapping[str, frozenset[str]]) -> list[str]:
    """What the table of layers forbids, each with its place.

    Args:
        imports: what is judged.
        package: the name of our package; imports of others' are not judged here.
        allowed: layer → the layers it may import besides itself; ``backends.*`` stands for each backend.
    """
    found = []
    for i in imports:
        if i.imported != package and not i.imported.startswith(f"{package}."):
            continue
        importer, imported = layer_of(i.importer, package), layer_of(i.imported, package)
        row = "backends.*" if importer.startswith("backends.") else importer
        if row not in allowed:
            found.append(f"{i}: the layer {row!r} is not in the table; give it a row")
        elif imported != importer and imported not in allowed[row]:
            may = ", ".join(sorted(allowed[row])) or "nothing"
            found.append(f"{i}: {importer or package!r} may import {may}")
    return found


def cycles(imports: Iterable[Import], modules: Mapping[str, Path]) -> list[str]:
    """The groups of modules that import one another, each with one way round; imports in functions count.

    Imports for the type checker do not: they are not there at run time.
    """
    edges: dict[str, dict[str, Import]] = {name: {} for name in modules}
    for i in imports:
        if not i.type_checking and i.imported in modules and i.imported != i.importer:
            edges[i.importer].setdefault(i.imported, i)
    found, seen = [], set()
    for start in edges:
        way = _way_back(start, edges)
        if way and frozenset(i.importer for i in way) not in seen:
            seen.add(frozenset(i.importer for i in way))
            found.append("a cycle:\n  " + "\n  ".join(map(str, way)))
    return found


def _way_back(start: str, edges: Mapping[str, Mapping[str, Import]]) -> list[Import]:
    """The shortest way from a module through its imports back to itself; empty when there is none."""
    reached: dict[str, Import] = {}
    queue = [start]
    for name in queue:
        for target, edge in edges[name].items():
            if target in reached:
                continue
            reached[target] = edge
            if target == start:
                way = [edge]
                while way[-1].importer != start:
                    way.append(reached[way[-1].importer])
                return way[::-1]
            queue.append(target)
    return []
