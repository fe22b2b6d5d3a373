"""Operators that take dtypes on accelerators for which the CPU has no kernel."""

from __future__ import annotations

import pytest
import torch

import torchport
from lazy.cases.oracle import D

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("bounds", [{"min": 0, "max": 6}, {}], ids=["bounds", "no bounds"])
def test_integers_are_counted_as_the_numbers_that_they_are(dtype: torch.dtype, bounds: dict[str, int]) -> None:
    x = torch.tensor([0, 1, 1, 3, 6, 5, 6, 6], dtype=dtype)
    fallbacks = torchport.executed_fallback_ops()
    counts = torch.histc(x.to(D), bins=7, **bounds)
    assert dtype is counts.dtype
    assert torch.histc(x.double(), bins=7, **bounds).tolist() == counts.tolist()
    assert fallbacks == torchport.executed_fallback_ops()


def test_the_cpu_still_has_no_kernel_for_them() -> None:
    with pytest.raises(NotImplementedError, match="histogram_cpu"):
        torch.histc(torch.tensor([1, 2]), bins=2, min=0, max=3)


def test_what_is_no_number_is_refused_as_on_the_cpu() -> None:
    for device in ("cpu", D):
        with pytest.raises(NotImplementedError, match="Bool"):
            torch.histc(torch.tensor([True, False], device=device), bins=2)


def test_floats_are_counted_as_on_the_cpu() -> None:
    x = torch.tensor([0.5, 1.5, 1.7, 2.9])
    assert torch.histc(x, bins=3, min=0, max=3).tolist() == torch.histc(x.to(D), bins=3, min=0, max=3).tolist()
