"""Every ATen view operator: write through the view and read the base, write to the base and read the view (case 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lazy.cases.oracle import D, check, data

Make = Callable[[str], torch.Tensor]
View = Callable[[torch.Tensor], Any]


def matrix(D: str) -> torch.Tensor:
    """Six by four."""
    return data(D, 6, 4)


def block(D: str) -> torch.Tensor:
    """Two by six by four."""
    return data(D, 2, 6, 4)


def with_ones(D: str) -> torch.Tensor:
    """Sizes of one in the middle and at the end."""
    return data(D, 3, 1, 4, 1)


def column(D: str) -> torch.Tensor:
    """To be expanded."""
    return data(D, 4, 1)


def complex_matrix(D: str) -> torch.Tensor:
    """Six by four, complex."""
    return data(D, 6, 4, dtype=torch.complex64)


def pairs(D: str) -> torch.Tensor:
    """To be seen as complex numbers."""
    return data(D, 6, 4, 2)


def square(D: str) -> torch.Tensor:
    """Four by four."""
    return data(D, 4, 4)


aten = torch.ops.aten

# (operator, base, view); the view calls the overload itself, so that no Python method stands in between.
VIEWS: list[tuple[str, Make, View]] = [
    ("_conj", complex_matrix, lambda t: aten._conj.default(t)),
    ("_neg_view", matrix, lambda t: aten._neg_view.default(t)),
    ("_reshape_alias", matrix, lambda t: aten._reshape_alias.default(t, [4, 6], [6, 1])),
    ("adjoint", complex_matrix, lambda t: aten.adjoint.default(t)),
    ("adjoint", block, lambda t: aten.adjoint.default(t)),
    ("alias", matrix, lambda t: aten.alias.default(t)),
    ("as_strided", matrix, lambda t: aten.as_strided.default(t, [3, 2], [5, 2], 1)),
    ("broadcast_to", with_ones, lambda t: aten.broadcast_to.default(t, [3, 1, 4, 1])),
    ("chunk", matrix, lambda t: aten.chunk.default(t, 4, 0)),
    ("conj", complex_matrix, lambda t: aten.conj.default(t)),
    ("conj", matrix, lambda t: aten.conj.default(t)),
    ("contiguous", matrix, lambda t: aten.contiguous.default(t)),
    ("detach", matrix, lambda t: aten.detach.default(t)),
    ("diagonal", matrix, lambda t: aten.diagonal.default(t, -1)),
    ("diagonal", block, lambda t: aten.diagonal.default(t, 1, 2, 0)),
    ("dsplit.array", block, lambda t: aten.dsplit.array(t, [1, 3])),
    ("dsplit.int", block, lambda t: aten.dsplit.int(t, 2)),
    ("expand", matrix, lambda t: aten.expand.default(t, [1, 6, 4])),
    ("expand_as", matrix, lambda t: aten.expand_as.default(t, torch.empty(1, 6, 4, device=t.device))),
    ("flatten.using_ints", block, lambda t: aten.flatten.using_ints(t, 0, 1)),
    ("hsplit.array", matrix, lambda t: aten.hsplit.array(t, [1, 3])),
    ("hsplit.int", matrix, lambda t: aten.hsplit.int(t, 2)),
    ("imag", complex_matrix, lambda t: aten.imag.default(t)),
    ("lift_fresh", matrix, lambda t: aten.lift_fresh.default(t)),
    ("linalg_diagonal", block, lambda t: aten.linalg_diagonal.default(t, offset=1)),
    ("mH", complex_matrix, lambda t: aten.mH.default(t)),
    ("mT", block, lambda t: aten.mT.default(t)),
    ("matrix_H", complex_matrix, lambda t: aten.matrix_H.default(t)),
    ("moveaxis.int", block, lambda t: aten.moveaxis.int(t, 0, 2)),
    ("moveaxis.intlist", block, lambda t: aten.moveaxis.intlist(t, [0, 1], [2, 0])),
    ("movedim.int", block, lambda t: aten.movedim.int(t, 2, 0)),
    ("movedim.intlist", block, lambda t: aten.movedim.intlist(t, [0, 1], [1, 2])),
    ("narrow", matrix, lambda t: aten.narrow.default(t, 0, 2, 3)),
    ("narrow", matrix, lambda t: aten.narrow.default(t, 1, -3, 2)),
    ("numpy_T", matrix, lambda t: aten.numpy_T.default(t)),
    ("permute", block, lambda t: aten.permute.default(t, [2, 0, -2])),
    ("positive", matrix, lambda t: aten.positive.default(t)),
    ("ravel", matrix, lambda t: aten.ravel.default(t)),
    ("real", complex_matrix, lambda t: aten.real.default(t)),
    ("real", matrix, lambda t: aten.real.default(t)),
    ("reshape", matrix, lambda t: aten.reshape.default(t, [2, -1])),
    ("reshape_as", matrix, lambda t: aten.reshape_as.default(t, torch.empty(8, 3, device=t.device))),
    ("resolve_conj", matrix, lambda t: aten.resolve_conj.default(t)),
    ("resolve_neg", matrix, lambda t: aten.resolve_neg.default(t)),
    ("select.int", block, lambda t: aten.select.int(t, 1, -2)),
    ("slice.Tensor", matrix, lambda t: aten.slice.Tensor(t, 0, 1, 6, 2)),
    ("slice.Tensor", matrix, lambda t: aten.slice.Tensor(t, 1, -3)),
    ("split.Tensor", matrix, lambda t: aten.split.Tensor(t, 4, 0)),
    ("split.sizes", matrix, lambda t: aten.split.sizes(t, [1, 3], 1)),
    ("split_with_sizes", matrix, lambda t: aten.split_with_sizes.default(t, [2, 4], 0)),
    ("squeeze", with_ones, lambda t: aten.squeeze.default(t)),
    ("squeeze.dim", with_ones, lambda t: aten.squeeze.dim(t, 1)),
    ("squeeze.dim", with_ones, lambda t: aten.squeeze.dim(t, 0)),
    ("squeeze.dims", with_ones, lambda t: aten.squeeze.dims(t, [1, 2, 3])),
    ("swapaxes", block, lambda t: aten.swapaxes.default(t, 0, 2)),
    ("swapdims", block, lambda t: aten.swapdims.default(t, 1, -1)),
    ("t", matrix, lambda t: aten.t.default(t)),
    ("tensor_split.indices", matrix, lambda t: aten.tensor_split.indices(t, [2, 3], 0)),
    ("tensor_split.sections", matrix, lambda t: aten.tensor_split.sections(t, 4, 0)),
    (
        "tensor_split.tensor_indices_or_sections",
        matrix,
        lambda t: aten.tensor_split.tensor_indices_or_sections(t, torch.tensor([1, 4]), 0),
    ),
    ("to.device", matrix, lambda t: aten.to.device(t, t.device, torch.float32)),
    ("to.dtype", matrix, lambda t: aten.to.dtype(t, torch.float32)),
    ("to.dtype_layout", matrix, lambda t: aten.to.dtype_layout(t, dtype=torch.float32)),
    ("to.other", matrix, lambda t: aten.to.other(t, torch.empty(1, device=t.device))),
    ("transpose.int", block, lambda t: aten.transpose.int(t, 0, -1)),
    ("unbind.int", block, lambda t: aten.unbind.int(t, 1)),
    ("unflatten.int", matrix, lambda t: aten.unflatten.int(t, 0, [2, -1])),
    ("unfold", matrix, lambda t: aten.unfold.default(t, 0, 2, 2)),
    ("unsqueeze", matrix, lambda t: aten.unsqueeze.default(t, 1)),
    ("unsqueeze", matrix, lambda t: aten.unsqueeze.default(t, -1)),
    ("view", matrix, lambda t: aten.view.default(t, [3, -1, 2])),
    ("view.dtype", matrix, lambda t: aten.view.dtype(t, torch.int32)),
    ("view.dtype", matrix, lambda t: aten.view.dtype(t, torch.int16)),
    ("view.dtype", matrix, lambda t: aten.view.dtype(t, torch.float64)),
    ("view_as", matrix, lambda t: aten.view_as.default(t, torch.empty(2, 12, device=t.device))),
    ("view_as_complex", pairs, lambda t: aten.view_as_complex.default(t)),
    ("view_as_real", complex_matrix, lambda t: aten.view_as_real.default(t)),
    ("vsplit.array", matrix, lambda t: aten.vsplit.array(t, [1, 5])),
    ("vsplit.int", matrix, lambda t: aten.vsplit.int(t, 3)),
    ("narrow.Tensor", matrix, lambda t: aten.narrow.Tensor(t, 0, torch.tensor(2), 3)),
]

# Views whose cells overlap, or that only read: the base is written, the view is read.
READ_ONLY: list[tuple[str, Make, View]] = [
    ("expand", column, lambda t: aten.expand.default(t, [2, 4, 3])),
    ("broadcast_to", column, lambda t: aten.broadcast_to.default(t, [4, 5])),
    ("expand_as", column, lambda t: aten.expand_as.default(t, torch.empty(4, 3, device=t.device))),
    ("unfold", matrix, lambda t: aten.unfold.default(t, 0, 3, 1)),
    ("as_strided", matrix, lambda t: aten.as_strided.default(t, [3, 4], [2, 1], 0)),
    ("resolve_conj", complex_matrix, lambda t: aten.resolve_conj.default(t.conj())),
    ("resolve_neg", complex_matrix, lambda t: aten.resolve_neg.default(t.conj().imag)),
]

# Operators whose schema says "view" and that are not reached with a strided tensor outside a transform.
NOT_STRIDED = {
    "_fw_primal": "inside forward AD only; see test_autograd.py",
    "_make_dual": "inside forward AD only; see test_autograd.py",
    "_unpack_dual": "inside forward AD only; see test_autograd.py",
    "_autocast_to_full_precision": "the JIT's autocast pass only",
    "_autocast_to_reduced_precision": "the JIT's autocast pass only",
    "_test_autograd_multiple_dispatch_view": "a helper of PyTorch's own tests",
    "slice_inverse": "inside functionalization only",
    "pin_memory": "host memory",
    "_indices": "sparse",
    "_values": "sparse",
    "indices": "sparse",
    "values": "sparse",
    "coalesce": "sparse",
    "_sparse_broadcast_to": "sparse",
    "ccol_indices": "sparse",
    "col_indices": "sparse",
    "crow_indices": "sparse",
    "row_indices": "sparse",
    "_nested_get_values": "nested",
    "_nested_view_from_buffer": "nested",
    "_nested_view_from_jagged": "nested",
}


def all_view_operators() -> set[str]:
    """Every ATen overload that returns an alias of an argument which it does not write to."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        schema = getattr(getattr(aten, base), overload or "default")._schema
        aliases = [r.alias_info for r in schema.returns if r.alias_info is not None]
        writes = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if aliases and not writes:
            found.add(name.removeprefix("aten::"))
    return found


def test_the_table_holds_every_view_operator_of_this_pytorch() -> None:
    assert all_view_operators() == {name for name, _, _ in VIEWS} | set(NOT_STRIDED)


def label(row: tuple[str, Make, View]) -> str:
    return f"{row[0]} of a {row[1].__name__}"


def as_list(view: Any) -> list[torch.Tensor]:
    """The views that the operator gave, one or several."""
    return [view] if isinstance(view, torch.Tensor) else list(view)


def write(t: torch.Tensor, i: int) -> None:
    """Changes every element, each in a way of its own, with an operator that fits the dtype."""
    if t.dtype in (torch.int16, torch.int32):
        t.bitwise_xor_(0x11)
    elif t.dtype is torch.float64 and i >= 0:
        t.copy_(torch.arange(t.numel(), device=t.device).view(t.shape))
    else:
        t.mul_(1.5).add_(i + 1)


@pytest.mark.parametrize("row", VIEWS, ids=label)
def test_a_write_through_the_view_changes_the_base(row: tuple[str, Make, View], barrier: str) -> None:
    _, make, view = row

    def program(D: str, sync: Callable[[], None]) -> object:
        base = make(D)
        views = as_list(view(base))
        sync()
        for i, v in enumerate(views):
            write(v, i)
            sync()
        return base, views

    check(program, barrier)


@pytest.mark.parametrize("row", VIEWS + READ_ONLY, ids=label)
def test_a_write_to_the_base_changes_the_view(row: tuple[str, Make, View], barrier: str) -> None:
    _, make, view = row

    def program(D: str, sync: Callable[[], None]) -> object:
        base = make(D)
        views = as_list(view(base))
        sync()
        base[1:].mul_(2)
        sync()
        base[0] = 4
        return base, views

    check(program, barrier)


@pytest.mark.parametrize("row", VIEWS, ids=label)
def test_a_view_of_the_view_and_a_view_of_a_view_reach_the_base(row: tuple[str, Make, View], barrier: str) -> None:
    _, make, view = row

    def program(D: str, sync: Callable[[], None]) -> object:
        outer = torch.cat([make(D), make(D)])
        base = outer[: outer.shape[0] // 2]
        views = as_list(view(base))
        inner = [v[..., -1:] if v.dim() else v for v in views]
        sync()
        for i, v in enumerate(inner):
            write(v, i)
        sync()
        outer[0] = 3
        return outer, base, views, inner

    check(program, barrier)


@pytest.mark.parametrize("row", VIEWS + READ_ONLY, ids=label)
def test_the_gradient_goes_through_the_view(row: tuple[str, Make, View]) -> None:
    name, make, view = row

    def program(D: str, sync: Callable[[], None]) -> object:
        base = make(D).requires_grad_()
        total = sum((v * v.conj()).real.sum() * (i + 1) for i, v in enumerate(as_list(view(base * 1))))
        if not total.requires_grad:  # detach, and views of another dtype, have no gradient
            return name
        total.backward()
        return base.grad

    check(program)


@pytest.mark.parametrize("row", VIEWS + READ_ONLY, ids=label)
def test_a_view_of_an_empty_tensor_has_the_right_sizes(row: tuple[str, Make, View]) -> None:
    name, make, view = row

    def outcome(device: str) -> object:
        try:
            return [(tuple(v.shape), v.stride(), v.storage_offset()) for v in as_list(view(make(device)[:0]))]
        except RuntimeError as error:
            return str(error).split("\n")[0]
        except IndexError as error:
            return str(error)

    assert outcome("cpu") == outcome(D), name
