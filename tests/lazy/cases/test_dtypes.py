"""Promotion of dtypes, unusual dtypes, zero-size dimensions (case 22)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lazy.cases.oracle import D as DEVICE
from lazy.cases.oracle import check, data, digits

Sync = Callable[[], None]
Expression = Callable[[str], object]

PROMOTIONS: dict[str, Expression] = {
    "int + float number": lambda D: digits(D, 9, 4) + 1.5,
    "int / int": lambda D: digits(D, 9, 4) / 2,
    "int // int": lambda D: digits(D, 9, 4) // 2,
    "int ** number": lambda D: digits(D, 9, 4) ** 2,
    "number ** int": lambda D: 2.0 ** digits(D, 9, 4),
    "bool + int number": lambda D: data(D, 4, dtype=torch.bool) + 1,
    "bool * float tensor": lambda D: data(D, 4, dtype=torch.bool) * data(D, 4),
    "bool sum": lambda D: data(D, 4, dtype=torch.bool).sum(),
    "uint8 + int8": lambda D: digits(D, 9, 4).to(torch.uint8) + digits(D, 9, 4).to(torch.int8),
    "uint8 wraps": lambda D: digits(D, 9, 4).to(torch.uint8) - 9,
    "int32 + int64 scalar tensor": lambda D: digits(D, 9, 4).int() + torch.tensor(3, device=D),
    "int32 + int64": lambda D: digits(D, 9, 4).int() + digits(D, 9, 4),
    "float32 + float64 scalar tensor": lambda D: data(D, 4) + torch.tensor(1.5, dtype=torch.float64, device=D),
    "float32 + float64 cpu scalar": lambda D: data(D, 4) + torch.tensor(1.5, dtype=torch.float64),
    "float32 + float64": lambda D: data(D, 4) + data(D, 4).double(),
    "int scalar tensor + float scalar": lambda D: torch.tensor(3, device=D) + 0.5,
    "half + float scalar tensor": lambda D: data(D, 4).half() + torch.tensor(0.1, device=D),
    "bfloat16 + half": lambda D: data(D, 4).bfloat16() + data(D, 4).half(),
    "bfloat16 * float": lambda D: data(D, 4).bfloat16() * data(D, 4),
    "complex + float": lambda D: data(D, 4, dtype=torch.complex64) + data(D, 4),
    "float + complex number": lambda D: data(D, 4) + 2j,
    "float64 * complex number": lambda D: data(D, 4).double() * 2j,
    "int * complex64": lambda D: digits(D, 9, 4) * data(D, 4, dtype=torch.complex64),
    "comparison of kinds": lambda D: digits(D, 9, 4) > data(D, 4),
    "where of kinds": lambda D: torch.where(data(D, 4) > 0, digits(D, 9, 4), data(D, 4)),
    "where of numbers": lambda D: torch.where(data(D, 4) > 0, 1, 2.0),
    "cat of kinds": lambda D: torch.cat([digits(D, 9, 4), data(D, 4), data(D, 4).double()]),
    "stack of kinds": lambda D: torch.stack([digits(D, 9, 4).int(), data(D, 4, dtype=torch.bool)]),
    "mean of bool as float": lambda D: data(D, 4, dtype=torch.bool).float().mean(),
    "cumsum of int32": lambda D: digits(D, 9, 4).int().cumsum(0),
    "prod of uint8": lambda D: digits(D, 9, 4).to(torch.uint8).prod(),
    "max of two kinds": lambda D: torch.maximum(digits(D, 9, 4), data(D, 4)),
    "sqrt of int": lambda D: digits(D, 9, 4).sqrt(),
    "true division of bools": lambda D: data(D, 4, dtype=torch.bool) / 2,
    "shift": lambda D: digits(D, 9, 4).int() << 2,
    "and, or, not": lambda D: ~(digits(D, 9, 4) & 3 | 4),
    "remainder by a negative": lambda D: digits(D, 9, 4) % -4,
    "abs of complex": lambda D: data(D, 4, dtype=torch.complex64).abs(),
    "angle": lambda D: data(D, 4, dtype=torch.complex128).angle(),
    "a scalar tensor as index type": lambda D: digits(D, 9, 4)[torch.tensor(1, dtype=torch.uint8, device=D).long()],
    "default dtype of numbers": lambda D: [torch.tensor(v, device=D) for v in (1, 1.0, True, 1j)],
    "arange": lambda D: [torch.arange(4, device=D), torch.arange(4.0, device=D), torch.arange(1, 2, 0.3, device=D)],
    "full": lambda D: [torch.full((2,), v, device=D) for v in (1, 1.0, True, 1j)],
    "linspace of ints": lambda D: torch.linspace(0, 5, 4, device=D, dtype=torch.int32),
}


@pytest.mark.parametrize("name", PROMOTIONS)
def test_promotion_gives_eagers_dtype_and_values(name: str, barrier: str) -> None:
    check(lambda D, sync: PROMOTIONS[name](D), barrier)


@pytest.mark.parametrize("name", ["int / int", "float32 + float64 cpu scalar", "full", "bool sum"])
def test_promotion_follows_the_default_dtype(name: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        check(lambda D, sync: PROMOTIONS[name](D), "barrier after")
    finally:
        torch.set_default_dtype(torch.float32)


IN_PLACE: dict[str, Callable[[str], torch.Tensor]] = {
    "float += int": lambda D: data(D, 4).add_(digits(D, 9, 4)),
    "int += bool": lambda D: digits(D, 9, 4).add_(data(D, 4, dtype=torch.bool)),
    "bfloat16 *= float": lambda D: data(D, 4).bfloat16().mul_(data(D, 4)),
    "uint8 += number": lambda D: digits(D, 9, 4).to(torch.uint8).add_(255),
    "bool |= bool": lambda D: data(D, 4, dtype=torch.bool).logical_or_(data(D, 4) > 1),
    "complex *= float": lambda D: data(D, 4, dtype=torch.complex64).mul_(data(D, 4)),
    "float32 += float64": lambda D: data(D, 4).add_(data(D, 4).double()),
    "int floor divided": lambda D: digits(D, 9, 4).floor_divide_(2),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_keeps_the_dtype_of_the_target(name: str, barrier: str) -> None:
    check(lambda D, sync: IN_PLACE[name](D), barrier)


REFUSED: dict[str, Expression] = {
    "int += float": lambda D: digits(D, 9, 4).add_(1.5),
    "int /= int": lambda D: digits(D, 9, 4).div_(2),
    "bool - bool": lambda D: data(D, 4, dtype=torch.bool) - data(D, 4, dtype=torch.bool),
    "float += complex": lambda D: data(D, 4).add_(1j),
    "mean of ints": lambda D: digits(D, 9, 4).mean(),
    "shift of floats by int in place": lambda D: digits(D, 9, 4).sqrt_(),
    "order of complex": lambda D: data(D, 4, dtype=torch.complex64) > 1,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_at_the_call_with_its_text(name: str) -> None:
    with pytest.raises(RuntimeError) as eager:
        REFUSED[name]("cpu")
    with pytest.raises(RuntimeError) as ours:
        REFUSED[name](DEVICE)
    first = str(eager.value).split("\n")[0]
    assert first in str(ours.value) or first.replace("cpu", DEVICE) in str(ours.value)


ALL_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype_goes_there_and_back_and_through_conversions(dtype: torch.dtype, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        x = data(D, 2, 3, dtype=dtype)
        sync()
        to = [d for d in ALL_DTYPES if not dtype.is_complex or d.is_complex]
        return [x, torch.zeros_like(x), torch.ones(2, device=D, dtype=dtype), *(x.to(d) for d in to), x.t()[1:]]

    check(program, barrier)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn], ids=str)
def test_the_rarer_dtypes_are_stored_and_converted(dtype: torch.dtype) -> None:
    host = torch.tensor([1, 2, 3]).to(dtype)
    there = host.to(DEVICE)
    assert there.dtype is dtype
    assert torch.equal(there.to(torch.float32).cpu(), torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(there.cpu().view(torch.uint8), host.view(torch.uint8))


def view_as_real_written(D: str, sync: Sync) -> object:
    z = data(D, 4, dtype=torch.complex64)
    torch.view_as_real(z)[:, 1] = 2
    sync()
    return z, z.real, z.imag


def imag_written(D: str, sync: Sync) -> object:
    z = data(D, 2, 3, dtype=torch.complex64)
    z.imag[1] = 5
    z.real.mul_(2)
    sync()
    z[0].conj_physical_()
    return z, z.conj(), z.mH


def lazily_conjugated(D: str, sync: Sync) -> object:
    z = data(D, 3, 3, dtype=torch.complex64)
    c = z.conj()
    sync()
    c[0] = 1 + 2j
    z[1] = 3j
    return z, c, c @ z, c.resolve_conj(), c.imag, c.is_conj()


def view_as_complex_written(D: str, sync: Sync) -> object:
    x = data(D, 4, 2)
    z = torch.view_as_complex(x)
    z.mul_(1j)
    sync()
    x[0, 0] = 9
    return x, z


def bool_views(D: str, sync: Sync) -> object:
    mask = torch.zeros(4, 4, dtype=torch.bool, device=D)
    mask[1::2] = True
    mask.t()[0].logical_not_()
    sync()
    mask[2].fill_(1)
    return mask, mask.view(torch.uint8), mask.any(0), mask.sum(1)


def uint8_views(D: str, sync: Sync) -> object:
    x = digits(D, 200, 8).to(torch.uint8)
    x[::2].bitwise_xor_(255)
    sync()
    x.view(torch.int32)[1] = 77
    return x, x.view(torch.int16), x.float().mean()


@pytest.mark.parametrize(
    "program",
    [
        view_as_real_written,
        imag_written,
        lazily_conjugated,
        view_as_complex_written,
        bool_views,
        uint8_views,
    ],
    ids=lambda f: f.__name__,
)
def test_views_of_unusual_dtypes(program: Callable[[str, Sync], object], barrier: str) -> None:
    check(program, barrier)


# PyTorch hands these to a device with the conjugate and negative bits still set.
BIT_READERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": torch.mm,
    "matmul of three dims": lambda a, b: torch.matmul(a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "addmm in place": lambda a, b: torch.ones_like(b).addmm_(a, b),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "baddbmm": lambda a, b: torch.baddbmm(a[None], a[None], b[None]),
    # Eager leaves the conjugate bit set on some of these results; the value is what counts.
    "dot": lambda a, b: torch.dot(a[0], b[0]).resolve_conj(),
    "vdot": lambda a, b: torch.vdot(a[0], b[0]).resolve_conj(),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "solve": torch.linalg.solve,
    "svdvals": lambda a, b: torch.linalg.svdvals(a),
    "copy": lambda a, b: torch.empty_like(b).copy_(a),
    "to another dtype": lambda a, b: a.to(torch.complex128 if a.is_complex() else torch.float64),
    "cat": lambda a, b: torch.cat([a, b]),
    "index": lambda a, b: a[torch.tensor([2, 0], device=a.device)],
    "clone": lambda a, b: a.clone(),
    "contiguous": lambda a, b: a.t().contiguous(),
    "sum": lambda a, b: a.sum(),
    "abs": lambda a, b: a.abs(),
}
BITS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conj": torch.Tensor.conj,
    "adjoint": torch.Tensor.adjoint,
    "neg": lambda z: z.conj().imag,
    "neg of a view": lambda z: torch.ops.aten._neg_view(z.t()),
}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", BIT_READERS)
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_conjugate_and_negative_views_are_read_as_such(name: str, bits: str, side: str) -> None:
    def program(D: str, sync: Sync) -> object:
        z, w = data(D, 3, 3, dtype=torch.complex64), data(D, 3, 3, seed=2, dtype=torch.complex64)
        a, b = BITS[bits](z), BITS[bits](w)
        if side == "left":
            b = b.resolve_conj().resolve_neg()
        elif side == "right":
            a = a.resolve_conj().resolve_neg()
        return BIT_READERS[name](a, b)

    check(program, rtol=1e-4, atol=1e-4, strides=name not in ("solve", "svdvals"))


EMPTY: dict[str, Expression] = {
    "sum": lambda D: torch.zeros(0, 3, device=D).sum(0),
    "mean is nan": lambda D: torch.zeros(0, device=D).mean(),
    "prod": lambda D: torch.zeros(0, device=D).prod(),
    "mm": lambda D: torch.zeros(2, 0, device=D) @ torch.zeros(0, 3, device=D),
    "mm of no rows": lambda D: torch.zeros(0, 2, device=D) @ torch.zeros(2, 3, device=D),
    "bmm": lambda D: torch.bmm(torch.zeros(0, 2, 3, device=D), torch.zeros(0, 3, 2, device=D)),
    "cat": lambda D: torch.cat([torch.zeros(0, device=D), data(D, 3), torch.zeros(0, 3, device=D)[0:0].flatten()]),
    "add": lambda D: torch.zeros(0, 3, device=D) + torch.ones(1, 3, device=D),
    "view": lambda D: torch.zeros(0, 4, device=D).view(2, 0, 2),
    "expand": lambda D: torch.zeros(1, 0, device=D).expand(5, 0),
    "slice": lambda D: data(D, 4)[4:],
    "write to nothing": lambda D: _wrote_nothing(D),
    "index": lambda D: data(D, 4)[torch.zeros(0, dtype=torch.int64, device=D)],
    "sort": lambda D: torch.zeros(0, device=D).sort(),
    "softmax": lambda D: torch.zeros(3, 0, device=D).softmax(1),
    "linear": lambda D: torch.nn.functional.linear(torch.zeros(0, 3, device=D), torch.ones(2, 3, device=D)),
    "split": lambda D: list(torch.zeros(0, 4, device=D).split(2, 1)),
    "stack": lambda D: torch.stack([torch.zeros(0, device=D)] * 2),
    "any and all": lambda D: [torch.zeros(0, device=D).any(), torch.zeros(0, device=D).all()],
    "cumsum": lambda D: torch.zeros(0, 2, device=D).cumsum(0),
    "factories": lambda D: [torch.arange(0, device=D), torch.eye(0, device=D), torch.rand(0, 2, device=D)],
    "copy": lambda D: torch.zeros(0, 2).to(D).double(),
    "scatter": lambda D: data(D, 3).scatter(0, torch.zeros(0, dtype=torch.int64, device=D), data(D, 0)),
    "gradient": lambda D: _gradient_of_nothing(D),
}


def _wrote_nothing(D: str) -> torch.Tensor:
    x = data(D, 4)
    x[2:2] = 5
    x[x > 100] = 1
    return x


def _gradient_of_nothing(D: str) -> torch.Tensor | None:
    w = data(D, 4).requires_grad_()
    (w[4:].sum() + w[:2].sum()).backward()
    return w.grad


@pytest.mark.parametrize("name", EMPTY)
def test_dimensions_of_size_zero(name: str, barrier: str) -> None:
    check(lambda D, sync: EMPTY[name](D), barrier)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "aminmax"])
def test_reductions_of_nothing_raise_as_in_eager(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as eager:
        getattr(torch.zeros(0), name)()
    with pytest.raises(type(eager.value)) as ours:
        getattr(torch.zeros(0, device=DEVICE), name)()
    assert str(eager.value).split("\n")[0] == str(ours.value).split("\n")[0]
