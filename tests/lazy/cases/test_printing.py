"""Printing, the compile cache, and what a second process finds in it (case 16)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lazy.cases.oracle import D, counted, counter, data, digits

# -- 16: printing, and a second process ------------------------------------------------------------------------------

PRINTED: dict[str, Callable[[], torch.Tensor]] = {
    "small": lambda: data(D, 3, 4) + 1,
    "large": lambda: data(D, 2000) * 2,
    "large matrix": lambda: data(D, 100, 200) * 2,
    "integers": lambda: digits(D, 9, 40, 40) + 1,
    "bool": lambda: data(D, 50) > 0,
    "complex": lambda: data(D, 4, dtype=torch.complex64) * 2,
    "bfloat16": lambda: data(D, 4).bfloat16() + 1,
    "scalar": lambda: data(D, 4).sum(),
    "empty": lambda: torch.zeros(0, 3, device=D),
    "view": lambda: data(D, 30, 30)[::2, 1:].t(),
    "infinite": lambda: data(D, 4) / 0,
    "with a gradient": lambda: data(D, 4).requires_grad_() * 2,
}


@pytest.mark.parametrize("name", PRINTED)
def test_printing_costs_at_most_one_execution_and_one_compile(name: str) -> None:
    x = PRINTED[name]()
    with counted("Execute") as executions, counted("UncachedCompile") as compiles:
        text = repr(x)
    assert executions[0] <= 1
    assert compiles[0] <= 1
    with counted("Execute") as executions:
        assert str(x) == text
        assert f"{x}" is not None
    assert executions == [0]
    assert f"device='{torch.device(D, 0)}'" in text
    not_the_numbers = re.compile(r",\s*(device|grad_fn)=[^,)]*")
    assert " ".join(not_the_numbers.sub("", text).split()) == " ".join(repr(x.detach().cpu()).split())


def test_printing_a_parameter_and_a_module() -> None:
    model = nn.Linear(2, 2, device=D)
    assert "Parameter containing" in repr(model.weight)
    assert repr(model) == "Linear(in_features=2, out_features=2, bias=True)"
    assert "requires_grad=True" in repr(model.weight)


SCRIPT = """
import torch, torchport
import torch.nn.functional as F
torch.manual_seed(0)
model = torch.nn.Linear(4, 2, device="port")
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    F.mse_loss(model(torch.ones(8, 4, device="port")), torch.zeros(8, 2, device="port")).backward()
    optimizer.step()
torchport.sync()
torchport.wait_device_ops()
print(torchport.metrics.counter_value("UncachedCompile"))
"""


@pytest.fixture
def cache_folder(tmp_path: Path) -> dict[str, str]:
    """An environment of its own for the processes of one test."""
    return {**os.environ, "TORCHPORT_CACHE_DIR": str(tmp_path)}


def compiles_of_a_process(environment: dict[str, str]) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace('"port"', repr(D))],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_the_first_process_compiles_the_same_number_of_graphs_each_time(cache_folder: dict[str, str]) -> None:
    assert 0 < compiles_of_a_process(cache_folder) <= 4


def test_a_second_process_running_the_same_script_compiles_nothing(cache_folder: dict[str, str]) -> None:
    compiles_of_a_process(cache_folder)
    assert compiles_of_a_process(cache_folder) == 0


def test_graph_hashes_are_equal_in_every_process(cache_folder: dict[str, str]) -> None:
    script = (
        "import torch, torchport\n"
        f"x = torch.ones(3, device={D!r})\n"
        "y = torch.nn.functional.softmax(x * 2.5 + x[1:].sum(), 0)\n"
        "print(torchport.debug.graph_hash([y]))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**cache_folder, "PYTHONHASHSEED": seed},
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
    assert hashes != {""}


def test_the_cache_counts_hits() -> None:
    x = data(D, 5)
    (x * 3 + 1).cpu()
    before = counter("CachedCompile")
    (x * 4 + 2).cpu()
    assert counter("CachedCompile") > before
