"""Where results lie: the strides, gaps and conjugate bits that eager's kernels give them, into ``out=`` as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchport
from lazy.cases.oracle import D, data
from torchport.lazy.eager import clear_fallback_ops

COMPLEX = torch.complex64


def facts(tensors: Any) -> list[tuple[Any, ...]]:
    listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    return [(tuple(t.shape), t.stride(), t.storage_offset(), t.is_conj(), t.is_neg()) for t in listed]


def on_host(tensors: Any) -> list[torch.Tensor]:
    listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    return [t.cpu().resolve_conj() for t in listed]


RESULTS: dict[str, Callable[[str], Any]] = {
    "a solution with gaps": lambda D: torch.linalg.lstsq(data(D, 4, 3), data(D, 4, 3)).solution,
    "several solutions": lambda D: torch.linalg.lstsq(data(D, 2, 4, 3), data(D, 2, 4, 3)).solution,
    "vdot of a conjugate": lambda D: torch.vdot(data(D, 3, dtype=COMPLEX), data(D, 3, dtype=COMPLEX).conj()),
    "the other conjugate": lambda D: torch.vdot(data(D, 3, dtype=COMPLEX).conj(), data(D, 3, dtype=COMPLEX)),
    "solved with a conjugate": lambda D: torch.linalg.solve_triangular(
        data(D, 3, 3, dtype=COMPLEX).triu().mH, data(D, 3, 1, dtype=COMPLEX), upper=False
    ),
    "solved from factors": lambda D: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(data(D, 3, 3, dtype=COMPLEX)),
        data(D, 2, 3, dtype=COMPLEX),
        adjoint=True,
        left=False,
    ),
    "nonzero": lambda D: torch.eye(3, device=D).nonzero(),
    "zeros like an empty broadcast": lambda D: torch.zeros_like(torch.zeros(1, device=D).expand(0, 2)),
}


@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS)
def test_a_result_lies_as_eager_leaves_it(make: Callable[[str], Any]) -> None:
    wanted, got = make("cpu"), make(D)
    assert facts(wanted) == facts(got)
    torch.testing.assert_close(on_host(got), on_host(wanted))
    # A write into it, and what a view of it sees.
    for t in (wanted, got):
        t.mul_(2)
    torch.testing.assert_close(
        on_host(got[..., :1] if got.dim() else got), on_host(wanted[..., :1] if got.dim() else wanted)
    )


def empty(D: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=D)


def strided(D: str, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*sizes[:-1], 2 * sizes[-1], dtype=dtype, device=D)[..., ::2]


INTO: dict[str, Callable[[str], Any]] = {
    "fft, resized": lambda D: torch.fft.fft2(data(D, 2, 3, 4), dim=(0, 1), out=empty(D, COMPLEX)),
    "fft, strided": lambda D: torch.fft.fft2(data(D, 2, 3, 4), dim=(0, 1), out=strided(D, 2, 3, 4, dtype=COMPLEX)),
    "ihfft2, resized": lambda D: torch.fft.ihfft2(data(D, 5, 6, 5), dim=(2, 1), out=empty(D, COMPLEX)),
    "inverse, resized": lambda D: torch.linalg.inv(torch.eye(3, device=D) * 2, out=empty(D)),
    "cholesky, resized": lambda D: torch.linalg.cholesky(torch.eye(3, device=D).expand(2, 3, 3), out=empty(D)),
    "lstsq, resized": lambda D: torch.linalg.lstsq(
        data(D, 4, 3), data(D, 4, 3), out=(empty(D), empty(D), empty(D, torch.int64), empty(D))
    ),
    "lstsq, strided": lambda D: torch.linalg.lstsq(
        data(D, 4, 3), data(D, 4, 3), out=(strided(D, 3, 3), empty(D), empty(D, torch.int64), empty(D))
    ),
    "nonzero, resized": lambda D: torch.nonzero(torch.eye(3, device=D), out=empty(D, torch.int64)),
    "nonzero of nothing": lambda D: torch.nonzero(torch.zeros(3, device=D), out=empty(D, torch.int64)),
    "nonzero, strided": lambda D: torch.nonzero(torch.eye(3, device=D), out=strided(D, 3, 2, dtype=torch.int64)),
    "masked_select, strided": lambda D: torch.masked_select(
        data(D, 4), torch.ones(4, dtype=torch.bool, device=D), out=strided(D, 4)
    ),
    "cummax, resized": lambda D: torch.cummax(data(D, 3, 4), 1, out=(empty(D), empty(D, torch.int64))),
    "cummin, strided": lambda D: torch.cummin(
        data(D, 3, 4), 0, out=(strided(D, 3, 4), strided(D, 3, 4, dtype=torch.int64))
    ),
    "sort, strided": lambda D: torch.sort(data(D, 3, 4), out=(strided(D, 3, 4), strided(D, 3, 4, dtype=torch.int64))),
    "vdot of a conjugate": lambda D: torch.vdot(
        data(D, 3, dtype=COMPLEX), data(D, 3, dtype=COMPLEX).conj(), out=empty(D, COMPLEX).sum()
    ),
    "an integer quotient": lambda D: torch.div(
        torch.arange(1, 5, device=D), torch.arange(1, 5, device=D), rounding_mode="floor", out=strided(D, 4).long()
    ),
    "batch norm with its statistics": lambda D: torch.ops.aten._native_batch_norm_legit.out(
        data(D, 4, 3, 2),
        None,
        None,
        torch.zeros(3, device=D),
        torch.ones(3, device=D),
        True,
        0.1,
        1e-5,
        out=empty(D),
        save_mean=empty(D),
        save_invstd=empty(D),
    ),
}


@pytest.mark.parametrize("call", INTO.values(), ids=INTO)
def test_out_is_left_as_eager_leaves_it_and_no_fallback(call: Callable[[str], Any]) -> None:
    wanted = call("cpu")
    clear_fallback_ops()
    got = call(D)
    assert {} == torchport.executed_fallback_ops()
    assert facts(wanted) == facts(got)
    torch.testing.assert_close(on_host(got), on_host(wanted))


def test_statistics_are_written_beside_out() -> None:
    means = []
    for device in ("cpu", D):
        mean, variance = torch.zeros(3, device=device), torch.ones(3, device=device)
        out = [empty(device) for _ in range(3)]
        torch.ops.aten._native_batch_norm_legit.out(
            data(device, 4, 3, 2),
            None,
            None,
            mean,
            variance,
            True,
            0.1,
            1e-5,
            out=out[0],
            save_mean=out[1],
            save_invstd=out[2],
        )
        means.append((mean.cpu(), variance.cpu()))
    torch.testing.assert_close(means[1], means[0])


def test_out_of_another_dtype_is_refused_in_eagers_words() -> None:
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype float, but got double instead"):
        torch.linalg.inv(torch.eye(2), out=empty("cpu", torch.float64))
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype float, but got double instead"):
        torch.linalg.inv(torch.eye(2, device=D), out=empty(D, torch.float64))


def test_a_rounding_mode_of_none_is_true_division() -> None:
    x, y = torch.arange(4, device=D), torch.tensor([2, 2, 3, 4], device=D)
    assert [0.0, 0.5] == torch.div(x, y, rounding_mode=None)[:2].tolist()
    assert [0.0, 0.5] == torch.div(x.float(), 2, rounding_mode=None)[:2].tolist()


def test_integers_are_divided_in_place_although_a_probe_of_zeros_cannot_be() -> None:
    x = torch.tensor([7, 8], device=D)
    assert [3, 2] == x.floor_divide_(torch.tensor([2, 4], device=D)).tolist()
    assert [1, 0] == x.remainder_(torch.tensor([2, 2], device=D)).tolist()


def test_shifts_in_place_are_no_fallback() -> None:
    clear_fallback_ops()
    x = torch.arange(4, device=D)
    x <<= 2
    x >>= torch.tensor(1, device=D)
    assert ([0, 2, 4, 6], {}) == (x.tolist(), torchport.executed_fallback_ops())


def test_is_set_to_compares_places_and_not_copies() -> None:
    x = torch.arange(4, device=D)
    assert [True, False, False] == [x.is_set_to(y) for y in (x.detach(), x.clone(), x[:2])]


@pytest.mark.parametrize(
    "name", ["fmod", "remainder", "copysign", "bitwise_left_shift", "special.zeta", "special.xlog1py"]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("sizes", [(3,), ()], ids=["dimensions", "none"])
def test_a_number_for_a_tensor_into_out(name: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    function = torch
    for part in name.split("."):
        function = getattr(function, part)
    number = 2 if "shift" in name else 0.3
    found: list[Any] = []
    for device in ("cpu", D):
        x = (torch.arange(3)[: sizes[0] if sizes else 1].reshape(sizes) + 7).to(dtype).to(device)
        try:
            wanted = function(x.cpu(), number).dtype  # type: ignore[operator]
            out = function(x, number, out=torch.empty(0, dtype=wanted, device=device))  # type: ignore[operator]
            found.append(out.cpu())
        except RuntimeError as error:
            found.append(str(error))
    assert type(found[0]) is type(found[1]), found
    if isinstance(found[0], str):
        assert found[0] == found[1]
    else:
        torch.testing.assert_close(found[1], found[0], equal_nan=True)
