"""Numbers that a dtype cannot hold are refused when the operator is called, whatever number came before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from lazy.cases.oracle import D
from torchport.lazy.number_ranges import NumberRange

NUMBERS = (1.0, -1.0, 1, -1, 300, 1e6, 2.0, 10**10, 1e30, -1e30, float("nan"), float("inf"), 3 + 0j, 3 + 1j)

CALLS: dict[str, Callable[[str, torch.Tensor, complex], torch.Tensor]] = {
    "scalar_tensor": lambda D, t, n: torch.scalar_tensor(n, dtype=t.dtype, device=D),
    "full": lambda D, t, n: torch.full((2,), n, dtype=t.dtype, device=D),
    "full_like": lambda D, t, n: torch.full_like(t, n),
    "new_full": lambda D, t, n: t.new_full((2,), n),
    "fill_": lambda D, t, n: t.fill_(n),
    "fill_ of one": lambda D, t, n: t[0].fill_(n),
    "fill_ of none": lambda D, t, n: t[:0].fill_(n),
    "masked_fill": lambda D, t, n: t.masked_fill(t == 0, n),
    "masked_fill_": lambda D, t, n: t.masked_fill_(t == 0, n),
    "index_fill": lambda D, t, n: t.index_fill(0, torch.tensor([0], device=D), n),
    "scatter": lambda D, t, n: t.scatter(0, torch.tensor([0], device=D), n),
    "add": lambda D, t, n: t + n,
    "add_": lambda D, t, n: t.add_(n),
    "add, alpha": lambda D, t, n: torch.add(t, t, alpha=n),
    "addcmul": lambda D, t, n: torch.addcmul(t, t, t, value=n),
    "clamp": lambda D, t, n: t.clamp(0, n),
    "eq": lambda D, t, n: t == n,
    "where": lambda D, t, n: torch.where(t == 0, t, n),
    "pad": lambda D, t, n: F.pad(t, (1, 1), value=n),  # type: ignore[arg-type]
    "hardtanh": lambda D, t, n: F.hardtanh(t, 0, n),  # type: ignore[arg-type]
    "linspace": lambda D, t, n: torch.linspace(0, n, 3, dtype=t.dtype, device=D),
    "index with a number": lambda D, t, n: t.__setitem__(torch.tensor([0], device=D), n) or t,  # type: ignore[func-returns-value]
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_a_number_is_taken_or_refused_as_on_the_cpu(call: str, dtype: torch.dtype) -> None:
    for number in NUMBERS:
        outcomes = []
        for device in ("cpu", D):
            try:
                outcomes.append(CALLS[call](device, torch.zeros(2, dtype=dtype, device=device), number).tolist())
            except Exception as error:  # noqa: BLE001 - eager's own error, whatever it is, is what is compared
                outcomes.append(f"{type(error).__name__}: {error}".replace(f"'{D}'", "'cpu'"))
        assert str(outcomes[0]) == str(outcomes[1]), number


def test_numbers_in_the_range_of_the_dtypes_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    t = torch.zeros(2, device=D)
    (t + 1.0).cpu()
    monkeypatch.setattr("torchport.lazy.number_ranges.infer", None)
    for number in (-1e30, -2.0, 0.5, 1e30):
        assert (t + number).cpu()[0] == torch.tensor(number)


def test_what_eager_was_asked_is_remembered() -> None:
    call = (torch.zeros(2, dtype=torch.uint8, device=D) + 1).untyped_storage()._torchport.value.node.call
    numbers = NumberRange(call)
    for i in range(300):
        numbers.check((300 + i,))
    assert len(numbers._accepted) <= 256
