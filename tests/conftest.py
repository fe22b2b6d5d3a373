"""What every test relies on: one torch thread, settings that are put back, reproducible random examples."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

import torchport
from support.eager_backend import EagerTestBackend
from torchport.config import SETTINGS, settings
from torchport.ir.graph import Graph
from torchport.ir.text import parse_graph, print_graph
from torchport.lazy import compilation

# The first example may include an import or a compile, so time says nothing; derandomised, so that a failure repeats.
hypothesis_settings.register_profile(
    "torchport",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
hypothesis_settings.load_profile("torchport")

# Sums are split by the number of threads, so the bits of a result would depend on the machine; and a process whose
# thread pool has started may hang in a forked child.
torch.set_num_threads(1)


# A program that an earlier run has left on the disk would hide a compile; tests of that cache name a folder.
os.environ["TORCHPORT_CACHE_DIR"] = settings.cache_dir = "off"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--port-backend``: the tests of programs, such as ``tests/lazy/cases``, hold on every backend that computes."""
    parser.addoption(
        "--port-backend",
        help="the backend that is active: 'eager', 'recorded' (both of the tests), or an installed one",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the backend active that ``--port-backend`` names."""
    name = config.getoption("--port-backend")
    if name is None:
        return
    if name == "eager":
        torchport.register_backend(name, EagerTestBackend)
    elif name == "recorded":
        torchport.register_backend(name, torchport.RecordingBackend(EagerTestBackend()))
    torchport.use(name)


@pytest.fixture(autouse=True)
def settings_are_put_back() -> Iterator[None]:
    """A test may change settings; the next one finds what this one found."""
    before = {name: getattr(settings, name) for name in SETTINGS}
    yield
    for name, value in before.items():
        if getattr(settings, name) != value:
            setattr(settings, name, value)


@pytest.fixture(autouse=True)
def every_compiled_graph_survives_its_text_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each graph that a test compiles is printed, parsed, and compared with what was parsed."""
    original = compilation.lower_and_compile

    def checked(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        if len(graph) <= 2000:
            text = print_graph(graph)
            again = parse_graph(text)
            assert graph.hash == again.hash
            assert text == print_graph(again)
        return original(graph, *args, **kwargs)

    monkeypatch.setattr(compilation, "lower_and_compile", checked)
