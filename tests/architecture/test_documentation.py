"""The pages that go with the code are complete: a section for each error, each drawn in the tree."""

from __future__ import annotations

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
    if cls.__module__ == errors.__name__ and issubclass(cls, BaseException)
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


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/errors.md"])
def test_a_link_within_the_repository_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    assert [] == [t for t in targets if t and not ((ROOT / page).parent / t).exists()]
