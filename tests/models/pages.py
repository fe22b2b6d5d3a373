"""What the pages of ``docs/support`` that are written from here have in common."""

from __future__ import annotations

import datetime
import logging
import platform
import warnings
from importlib.metadata import version

import torch
import transformers

import torchport
from torchport.config import settings


def provenance(command: str, seconds: float) -> list[str]:
    """When, on what and how a page was made."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("transformers", "diffusers", "numpy"))
    return [
        f"- Date: {datetime.datetime.now(tz=datetime.UTC).date().isoformat()}",
        f"- Versions: torchport {torchport.__version__}, torch {torch.__version__}, {libraries}, Python "
        f"{platform.python_version()}",
        f"- Machine: {platform.system()} {platform.machine()}, one thread; backend: interpreter",
        f"- Command: `{command}`",
        f"- Duration: {seconds:.0f} s",
    ]


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A table in Markdown, and an empty line."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    lines += [f"| {' | '.join(cell(c) for c in row)} |" for row in rows]
    return [*lines, ""]


def cell(text: str) -> str:
    """Text that stays within its cell."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def first_lines(error: BaseException) -> str:
    """An error in a cell."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def prepare() -> None:
    """One thread, nothing compiled by an earlier run, and libraries that keep to themselves what is their own."""
    settings.cache_dir = "off"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
