"""The pages that go with the code are complete: a section for each error, each drawn in the tree."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchport import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
CLASSES = {
    name: cls
    for name, cls in inspect.getmembers(errors, inspect.isclass)
    if name in errors.__all__ and issubclass(cls, BaseException)
}


def test_there_is_a_section_for_each_error_and_no_other() -> None:
    assert CLASSES.keys() == SECTIONS.keys()


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_section_has_an_example_that_is_python_a_cause_and_a_fix(name: str) -> None:
    section = SECTIONS[name]
    assert [] == [part for part in ("**Example**", "**Cause.**", "**Fix.**") if part not in section]
    examples = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert examples
    for example in examples:
        compile(example, f"docs/errors.md#{name.lower()}", "exec")


@pytest.mark.subprocess
@pytest.mark.parametrize("name", [name for name, section in sorted(SECTIONS.items()) if "```text" in section])
def test_an_example_raises_the_error_with_the_text_that_the_page_shows(name: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", SECTIONS[name], flags=re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", SECTIONS[name], flags=re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True)
    # The page breaks long lines, and leaves out what a "…" stands for.
    raised = " ".join(done.stderr.partition(f"{name}: ")[2].split())
    parts = [" ".join(part.split()) for part in shown.split("…")]
    assert raised.startswith(parts[0]), done.stderr
    assert raised.endswith(parts[-1]), done.stderr


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_derives_from_ours_and_is_drawn_in_the_tree_with_its_other_base(name: str) -> None:
    cls = CLASSES[name]
    assert issubclass(cls, errors.TorchportError)
    (line,) = re.findall(rf"^[ │├└─]*{name}\b.*$", errors.__doc__ or "", flags=re.MULTILINE)
    foreign = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins" and base is not Exception]
    assert [] == [base for base in foreign if f"({base})" not in line and f"also a `{base}`" not in SECTIONS[name]]


def blocks_of(page: str) -> list[tuple[str, str | None]]:
    """The Python blocks of a page, each with the text block right below it, which shows what it prints."""
    text = (ROOT / page).read_text(encoding="utf-8")
    pattern = r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?"
    return [(m[1], m[2]) for m in re.finditer(pattern, text, flags=re.MULTILINE | re.DOTALL)]


PAGES_THAT_RUN = [
    "README.md",
    "docs/concepts.md",
    "docs/add-a-backend.md",
    "docs/lower-ahead-of-time.md",
    "docs/captured-steps.md",
]


@pytest.mark.subprocess
@pytest.mark.parametrize("page", PAGES_THAT_RUN)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    blocks = blocks_of(page)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\nprint('<end of block>')\n".join(code for code, _ in blocks), encoding="utf-8")
    # In a folder of its own: pages save files.
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, cwd=tmp_path)
    assert (0, "") == (done.returncode, done.stderr)
    for (_, shown), printed in zip(blocks, done.stdout.split("<end of block>\n"), strict=True):
        # The page leaves out what a "…" stands for.
        pattern = ".*".join(re.escape(part) for part in (shown or "").strip().split("…"))
        assert re.fullmatch(pattern, printed.strip(), flags=re.DOTALL), f"{page} shows {shown}\nprinted: {printed}"


def test_the_backend_of_the_page_is_that_of_the_example() -> None:
    """Statement by statement, without annotations and docstrings, which the page leaves out."""
    (block,) = [code for code, _ in blocks_of("docs/add-a-backend.md") if "class OwnBackend" in code]
    page = ast.parse(block)
    example = ast.parse((ROOT / "examples" / "own_backend.py").read_text(encoding="utf-8"))
    assert bare_definition(page, "compact") == bare_definition(example, "compact")
    assert bare_definition(page, "OwnBackend") == bare_definition(example, "OwnBackend")


def bare_definition(tree: ast.Module, name: str) -> str:
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
    for node in ast.walk(found):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node) is not None:
                del node.body[0]
            if isinstance(node, ast.FunctionDef):
                node.returns = None
    return ast.unparse(found)


@pytest.mark.subprocess
def test_the_example_backend_trains_as_the_cpu_does() -> None:
    example = ROOT / "examples" / "own_backend.py"
    done = subprocess.run([sys.executable, "-W", "error", example], capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stderr)
    (difference,) = re.findall(r"largest difference: (\S+)", done.stdout)
    assert float(difference) < 1e-5
    assert "ran eagerly: none" in done.stdout


def test_every_word_that_the_glossary_places_in_the_code_is_there() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").partition("## Glossary")[2]
    places = [place for row in page.splitlines() for place in re.findall(r"`([\w.]+)(?:\(\))?` \|$", row)]
    sources = "\n".join(f.read_text(encoding="utf-8") for f in sorted((ROOT / "src").rglob("*.py")))
    assert places
    assert [] == [place for place in places if not re.search(rf"\b{place.rpartition('.')[2]}\b", sources)]


def test_the_list_of_decisions_is_complete() -> None:
    folder = ROOT / "docs" / "adr"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(f.name for f in folder.glob("0*.md")) == listed
    for file in listed:
        headings = re.findall(r"^## (\w+)", (folder / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert ["Context", "Decision", "Consequences", "Where"] == headings, file


PAGES = [
    p.relative_to(ROOT).as_posix()
    for folder in (".", "docs", "docs/adr", "examples", "bench")
    for p in sorted((ROOT / folder).glob("*.md"))
]


@pytest.mark.parametrize("page", PAGES)
def test_a_link_within_the_repository_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    assert [] == [t for t in targets if t and not ((ROOT / page).parent / t).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_a_source_or_test_file_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|bench|examples|docs)/[\w./-]+)`", text)
    named += [f"src/torchport/{n}" for n in re.findall(r"`((?:lazy|ir|backend|runtime|metrics|debug)/\w+\.py)`", text)]
    assert [] == [n for n in named if not (ROOT / n).exists()]
