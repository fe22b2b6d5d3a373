"""The programs of docs/trainers.md and of examples/ run, and print what is shown."""

from __future__ import annotations

import contextlib
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from architecture.test_documentation import blocks_of
from integrations.check import D
from integrations.hugging_face import chosen

ROOT = Path(__file__).parents[2]
BLOCKS = blocks_of("docs/trainers.md")

# The programs are run as a user runs them; what they are warned of is judged by the tests of each library.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def a_process_of_its_own(tmp_path: Path) -> Iterator[None]:
    """What the program writes and puts into the environment does not stay."""
    with chosen("cpu"), contextlib.chdir(tmp_path):
        yield


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_program_of_the_page_prints_what_the_page_shows(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = BLOCKS[number]
    script = tmp_path / "program.py"
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    # A "…\n" stands for any lines, or none: what the library itself prints.
    pattern = re.escape((shown or "").strip()).replace("…\\\n", "(.*\n)?")
    printed = capsys.readouterr().out.strip()
    assert re.fullmatch(pattern, printed, flags=re.DOTALL), printed


@pytest.mark.parametrize("name", ["fine_tune_sentences", "lightning_digits"])
def test_an_example_reaches_its_goal_on_the_device(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    assert example["main"](D) >= 0.95
    assert f"on {D}" in capsys.readouterr().out
