"""Runs one program on the device and on the CPU and compares everything that PyTorch promises about the results.

A program is a function ``program(D, sync)``: it makes its tensors on the device ``D`` and returns a pytree of them. It
calls ``sync()`` between its statements wherever a barrier might change something; the oracle decides what that does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree as pytree

import torchport
from torchport.config import settings

D = settings.device_name

BARRIERS = ("no barrier", "barrier after", "barrier between")
"""Never; once, after the last statement; after every statement that the program marks."""

Program = Callable[[str, Callable[[], None]], Any]


def nothing() -> None:
    """A barrier that is none."""


def seed_everything(seed: int = 0) -> None:
    """Starts every generator that a program may draw from again."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def data(device: str, *sizes: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same normal numbers on every device, drawn from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return (torch.randn(sizes, generator=generator) > 0).to(device)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 100, sizes, generator=generator).to(dtype).to(device)
    return torch.randn(sizes, generator=generator, dtype=dtype).to(device)


def digits(device: str, high: int, *sizes: int, seed: int = 1) -> torch.Tensor:
    """The same integers in ``[0, high)`` on every device."""
    return torch.randint(0, high, sizes, generator=torch.Generator().manual_seed(seed)).to(device)


def made(factory: Callable[[], nn.Module], D: str) -> nn.Module:
    """The module with the same weights on every device: small numbers, drawn on the host."""
    # On the CPU the host's generator is the device's too, so making the module must not advance it.
    with torch.random.fork_rng(devices=[]):
        module = factory()
    with torch.no_grad():
        for i, (name, p) in enumerate(module.named_parameters()):
            p.copy_(data("cpu", *p.shape, seed=i) * 0.3 + (1.0 if "norm" in name else 0.0))
    return module.to(D)


def run(program: Program, device: str, barrier: str = "no barrier", seed: int = 0) -> Any:
    """What the program returns on that device."""
    seed_everything(seed)
    result = program(device, torchport.sync if barrier == "barrier between" and device != "cpu" else nothing)
    if barrier != "no barrier" and device != "cpu":
        torchport.sync()
    return result


def check(
    program: Program,
    barrier: str = "no barrier",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    strides: bool = True,
    on_device: bool = True,
) -> None:
    """The program gives on the device what it gives on the CPU.

    Tolerances are those of ``torch.testing.assert_close`` for the dtype unless given. ``strides=False`` is for results
    whose layout PyTorch does not promise; ``on_device=False`` for programs that return host tensors.
    """
    wanted = run(program, "cpu")
    got = run(program, D, barrier)
    compare(wanted, got, rtol=rtol, atol=atol, strides=strides, on_device=on_device)


def compare(
    wanted: Any,
    got: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    strides: bool | str = True,
    on_device: bool = True,
) -> None:
    """Both pytrees are equal: structure, metadata, which tensors share a storage, values (read twice)."""
    wanted_leaves, wanted_spec = pytree.tree_flatten_with_path(wanted)
    got_leaves, got_spec = pytree.tree_flatten_with_path(got)
    assert str(wanted_spec) == str(got_spec)
    pairs = [(pytree.keystr(path), w, g) for (path, w), (_, g) in zip(wanted_leaves, got_leaves, strict=True)]
    for path, w, g in pairs:
        assert type(w) is type(g), f"{path}: {type(w)} wanted, got {type(g)}"
        if isinstance(w, torch.Tensor):
            assert metadata(w, strides) == metadata(g, strides), (
                f"metadata of {path}: {metadata(w, strides)} wanted, got {metadata(g, strides)}"
            )
            assert not on_device or g.device.type == torch.device(D).type, f"{path} is on {g.device}"
    assert shared_storages([w for _, w, _ in pairs]) == shared_storages([g for _, _, g in pairs]), (
        "who shares a storage"
    )
    for _ in range(2):
        for path, w, g in pairs:
            if isinstance(w, torch.Tensor):
                g = g.detach().cpu()
            elif not isinstance(w, float):
                assert w == g, f"at {path}: {w!r} wanted, got {g!r}"
                continue
            torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True, msg=_message(path))


def _message(path: str) -> Callable[[str], str]:
    return lambda text: f"at {path or 'the result'}: {text}"


THAT_MOVE = "that move"
"""The strides of dimensions with more than one element: no other leads anywhere."""


def metadata(tensor: torch.Tensor, strides: bool | str = True) -> dict[str, Any]:
    """Everything that a program can ask of a tensor without reading its values; of strides all, none, or some."""
    about: dict[str, Any] = {
        "shape": tuple(tensor.shape),
        "dtype": tensor.dtype,
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "type": type(tensor),
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
        "view": tensor._is_view(),
    }
    if strides and tensor.layout is torch.strided:
        moving = [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
        about["stride"] = moving if strides == THAT_MOVE else tensor.stride()
        about["storage_offset"] = tensor.storage_offset()
    return about


def shared_storages(leaves: list[Any]) -> list[int]:
    """For each strided tensor, the position of the first one with the same storage."""
    tensors = [t for t in leaves if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    keys = [t.untyped_storage()._cdata for t in tensors]
    return [keys.index(k) for k in keys]


def counter(name: str) -> int:
    """A counter of the metrics; 0 when nothing has counted yet."""
    return int(torchport.metrics.counter_value(name) or 0)


@contextmanager
def counted(name: str) -> Iterator[list[int]]:
    """Holds, once left, by how much the counter grew."""
    growth: list[int] = []
    before = counter(name)
    yield growth
    growth.append(counter(name) - before)


@contextmanager
def no_compile() -> Iterator[None]:
    """Fails if anything was compiled inside; says what torchport itself gives as the cause."""
    torchport.wait_device_ops()
    before = counter("UncachedCompile")
    yield
    torchport.wait_device_ops()
    compiles = counter("UncachedCompile") - before
    assert compiles == 0, f"{compiles} compiles where there should be none:\n{str(torchport.explain())[-3000:]}"
