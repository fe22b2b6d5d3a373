"""The sweep itself: it must find what is wrong, or its tables say nothing."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeps.comparison import assert_same_values, layout_difference, metadata_difference
from sweeps.expected import Expectation, judge
from sweeps.opinfo import main
from sweeps.placement import Placement
from sweeps.records import OpResult, SampleRecord, Status
from sweeps.reference import as_near
from sweeps.sweep import Sweep, named_operators, run_sweep
from sweeps.table import Run, render, write_pages
from torchport.config import settings

DEVICE = settings.device_name


@dataclass
class FakeOp:
    """As much of an OpInfo as the sweep looks at."""

    function: Any
    name: str = "fake"
    variant_test_name: str = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def sample_inputs(self, device: str, dtype: torch.dtype, requires_grad: bool = False) -> list[Any]:
        x = torch.arange(6.0).reshape(2, 3)
        return [SimpleNamespace(input=x, args=(), kwargs={}, broadcasts_input=False)]

    def supported_dtypes(self, device: str) -> set[torch.dtype]:
        return {torch.float32}


def swept(function: Any, timeout_s: float = 60.0) -> OpResult:
    [result] = run_sweep(Sweep("fwd", "float32", timeout_s=timeout_s), [FakeOp(function)], lambda r: None)
    return result


def on_device(x: torch.Tensor) -> bool:
    return x.device.type == DEVICE


def raised(x: torch.Tensor) -> torch.Tensor:
    if on_device(x):
        raise RuntimeError("no kernel")
    return x


def killed(x: torch.Tensor) -> torch.Tensor:
    if on_device(x):
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def hung(x: torch.Tensor) -> torch.Tensor:
    if on_device(x):
        time.sleep(600)
    return x


def refused(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("not on any device")


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("function", "status", "error"),
    [
        (lambda x: x + 1, Status.PASS, ""),
        (lambda x: x + 1 + on_device(x), Status.WRONG, "not close"),
        (lambda x: x + 1 + 1e-4 * on_device(x), Status.LOOSE, "not close"),
        (lambda x: x.add_(on_device(x)).sum() * 0, Status.WRONG, "not close"),
        (lambda x: x.cpu(), Status.META, "device port wanted, got cpu"),
        (raised, Status.EXCEPTION, "RuntimeError: no kernel"),
        (killed, Status.CRASH, "SIGKILL"),
        (refused, Status.SKIP, "not on any device"),
    ],
)
def test_each_kind_of_fault_is_found(function: Any, status: Status, error: str) -> None:
    result = swept(function)
    assert status == result.status
    assert error in result.error


@pytest.mark.subprocess
def test_an_operator_that_hangs_is_ended() -> None:
    assert Status.TIMEOUT == swept(hung, timeout_s=2.0).status


@pytest.mark.subprocess
def test_other_strides_and_copies_in_place_of_views_are_found() -> None:
    assert "stride (1, 3) wanted, got (2, 1)" in swept(lambda x: x.t().contiguous() if on_device(x) else x.t()).layout
    assert "shared storages" in swept(lambda x: x.clone() if on_device(x) else x.view(2, 3)).layout
    assert "" == swept(lambda x: x[:, 1:].t()).layout


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(12.0).reshape(3, 4)[1:, ::2],
        torch.arange(3.0).expand(2, 3),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.tensor(2),
        torch.empty(0, 3),
    ],
    ids=["contiguous", "transposed", "cut", "expanded", "conjugate", "negative", "scalar", "empty"],
)
def test_arguments_keep_their_layout(tensor: torch.Tensor) -> None:
    for device in ("cpu", DEVICE):
        placed = Placement(device).place(tensor)
        assert device == placed.device.type
        assert "" == layout_difference(tensor, placed)
        assert_same_values(tensor, placed)


def test_arguments_that_share_a_storage_still_do() -> None:
    x = torch.arange(4.0)
    whole, part = Placement(DEVICE).place((x, x[1:3]))
    part.zero_()
    assert [0.0, 0.0, 0.0, 3.0] == whole.tolist()
    assert [0.0, 1.0, 2.0, 3.0] == x.tolist()


def test_metadata_says_what_differs() -> None:
    x = torch.zeros(2, 3)
    assert "result 0: shape (2, 3) wanted, got (3,)" == metadata_difference(x, x[0], "cpu")
    assert "result 0: dtype torch.float32 wanted, got torch.int64" == metadata_difference(x, x.long(), "cpu")
    assert "2 results wanted, got 1" == metadata_difference((x, x), x, "cpu")


def result(name: str, status: Status) -> OpResult:
    return OpResult(name, "fwd", "float32", [SampleRecord(0), SampleRecord(1, status, "broken")])


def test_an_expected_failure_that_passes_is_an_error() -> None:
    expected = [Expectation("a", "cannot be"), Expectation("b", "cannot be", modes=frozenset({"bwd"}))]
    assert judge([result("a", Status.WRONG)], failures=expected).ok
    assert not judge([result("a", Status.PASS)], failures=expected).ok
    assert not judge([result("b", Status.WRONG)], failures=expected).ok
    assert judge([result("b", Status.PASS)], failures=expected).ok


@pytest.mark.parametrize("kind", ["fallbacks", "layouts", "reloads"])
def test_whatever_else_is_found_needs_a_reason(kind: str) -> None:
    found = result("a", Status.PASS)
    if kind == "fallbacks":
        found.samples[0].fallbacks = {"aten::nonzero": 2}
    elif kind == "reloads":
        found.samples[0].reloading = "graphs compiled by each step after loading: [1]"
    else:
        found.samples[0].layout = "stride (1,) wanted, got (2,)"
    reason: dict[str, Any] = {kind: [Expectation("a", "cannot be")]}
    assert not judge([found]).ok
    assert judge([found], **reason).ok
    assert not judge([result("a", Status.PASS)], **reason).ok


def made_run() -> Run:
    results = [result("a", Status.WRONG), result("b", Status.PASS), result("c", Status.META)]
    results[1].samples[0].fallbacks = {"aten::nonzero": 2}
    results[2].samples[0].layout = "stride (1,) wanted, got (2,)"
    results[1].samples[1].rounding = "1e-05 from the result in double precision, the CPU 2e-05"
    verdict = judge(results, [Expectation("a", "cannot be")])
    return Run(Sweep("fwd", "float32"), results, verdict, 90.0, "the command")


def test_a_page_lists_what_did_not_pass() -> None:
    page = render(made_run())
    for line in (
        "| wrong | 1 |",
        "| a | float32 | wrong: broken | cannot be |",
        "| c | float32 | meta: broken |  |",
        "| b | float32 | aten::nonzero ×2 |  |",
        "| c | float32 | stride (1,) wanted, got (2,) |  |",
        "| b | 1e-05 from the result in double precision, the CPU 2e-05 |",
        "33.33 % pass",
        "`the command`",
    ):
        assert line in page


def test_the_first_page_lists_every_sweep_and_all_that_is_not_as_on_the_cpu(tmp_path: Path) -> None:
    assert tmp_path / "opinfo" / "fwd-float32.md" == write_pages(made_run(), tmp_path)
    page = (tmp_path / "opinfo.md").read_text(encoding="utf-8")
    for line in (
        "| [forward, float32](opinfo/fwd-float32.md) | 3 | 1 | 33.33 | 2 | 0 | 1 | 1 | 5 | 90 |",
        "| a | failure | wrong: broken | fwd-float32 | cannot be |",
        "| b | fallback | aten::nonzero ×2 | fwd-float32 | **none: a fault** |",
        "in about 2 minutes",
        torch.__version__,
    ):
        assert line in page


def test_a_difference_of_rounding_is_told_from_a_wrong_result() -> None:
    exact = [torch.tensor([1.0, 2.0], dtype=torch.float64)]
    near, nearer, far = ([torch.tensor([1.0, 2.0 + e])] for e in (3e-3, 2e-3, 8e-3))
    assert "from the result in double precision" in as_near(exact, near, nearer)
    assert "from the result in double precision" in as_near(exact, nearer, near)
    assert "" == as_near(exact, near, far)
    assert "" == as_near(exact, near, [torch.tensor([1.0, torch.nan])])


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(ValueError, match=r"no operator is called linalg\.nothing"):
        named_operators(["add", "linalg.nothing"])


@pytest.mark.subprocess
def test_the_command_ends_with_1_only_after_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--ops", "add", "--samples", "1"])
    assert "fwd-float32: 1 pass; 100.00 % pass" in capsys.readouterr().out
