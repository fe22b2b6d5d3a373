"""Views: what is written through one name is read through every other (cases 1 to 4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lazy.cases.oracle import D, Program, check, data

Sync = Callable[[], None]


def programs(*functions: Program) -> pytest.MarkDecorator:
    """Runs the test once for each program."""
    return pytest.mark.parametrize("program", functions, ids=lambda f: f.__name__)


# -- 1: copies into views, with conversion ---------------------------------------------------------------------------


def every_other_element_from_floats(D: str, sync: Sync) -> object:
    d = torch.zeros(8, dtype=torch.int64, device=D)
    source = torch.linspace(0.5, 7.5, 8, device=D)
    sync()
    d[1::2].copy_(source[::2])
    sync()
    return d, source


def a_column_from_a_cpu_row(D: str, sync: Sync) -> object:
    d = torch.zeros(3, 4, dtype=torch.float64, device=D)
    d[:, 1].copy_(torch.tensor([1, 2, 3], dtype=torch.int32))
    sync()
    d[2] = torch.tensor([9.5, 8.5, 7.5, 6.5])
    sync()
    return d


def transposed_from_transposed(D: str, sync: Sync) -> object:
    d = torch.zeros(3, 4, device=D)
    d.t().copy_(data(D, 4, 3))
    sync()
    e = torch.zeros(4, 3, dtype=torch.float64, device=D)
    e.copy_(d.t())
    return d, e


def broadcast_into_a_window(D: str, sync: Sync) -> object:
    d = torch.zeros(4, 5, dtype=torch.int32, device=D)
    d[1:3, 1:4] = torch.tensor([1.9, -2.9, 3.9], device=D)
    sync()
    d[:, 4] = True
    d[0] = 7.9
    return d


def bool_from_numbers(D: str, sync: Sync) -> object:
    d = torch.zeros(6, dtype=torch.bool, device=D)
    d[::2].copy_(torch.tensor([0.0, 0.5, -1.0], device=D))
    sync()
    return d


def complex_from_real_parts(D: str, sync: Sync) -> object:
    z = torch.zeros(4, dtype=torch.complex64, device=D)
    z[1:3].copy_(torch.tensor([1, 2], device=D))
    sync()
    z.imag.copy_(torch.arange(4, device=D))
    return z


def out_of_the_device_into_a_view(D: str, sync: Sync) -> object:
    host = torch.zeros(8, dtype=torch.int64)
    source = torch.linspace(0.5, 7.5, 8, device=D)
    sync()
    host[1::2].copy_(source[::2])
    return host


def onto_overlapping_self(D: str, sync: Sync) -> object:
    a = torch.arange(12.0, device=D).view(3, 4)
    a.copy_(a.flip(0))
    sync()
    a[1:].copy_(a[:-1].clone())
    return a


@programs(
    every_other_element_from_floats,
    a_column_from_a_cpu_row,
    transposed_from_transposed,
    broadcast_into_a_window,
    bool_from_numbers,
    complex_from_real_parts,
    onto_overlapping_self,
)
def test_copying_into_a_view_converts_and_changes_the_base(program: Program, barrier: str) -> None:
    check(program, barrier)


def test_copying_to_a_host_view_changes_the_host_base(barrier: str) -> None:
    check(out_of_the_device_into_a_view, barrier, on_device=False)


# -- 2: expanded tensors ---------------------------------------------------------------------------------------------


def one_cell_of_an_expanded(D: str, sync: Sync) -> object:
    a = torch.arange(4.0, device=D)
    e = a.expand(3, 4)
    sync()
    e[1, 2] = 9
    sync()
    return a, e


def the_base_of_an_expanded(D: str, sync: Sync) -> object:
    a = torch.ones(3, 1, device=D)
    e = a.expand(3, 5)
    sync()
    a[1] = 7
    sync()
    return a, e


def a_row_of_an_expanded_column(D: str, sync: Sync) -> object:
    a = torch.arange(3.0, device=D).unsqueeze(1)
    e = a.expand(-1, 4)
    e[2, 0].add_(10)
    sync()
    a.mul_(2)
    sync()
    return a, e, e[:, 1:]


def a_scalar_expanded_twice(D: str, sync: Sync) -> object:
    a = torch.tensor(1.0, device=D)
    e = a.expand(2, 3)
    f = e[1].expand(4, 3)
    sync()
    a.fill_(5)
    sync()
    return a, e, f, f.t()


def broadcast_tensors_then_write(D: str, sync: Sync) -> object:
    x, y = torch.arange(3.0, device=D), torch.arange(2.0, device=D)[:, None]
    bx, by = torch.broadcast_tensors(x, y)
    sync()
    x[0] = 50
    y[1] = 60
    sync()
    return bx, by, bx + by


@programs(
    one_cell_of_an_expanded,
    the_base_of_an_expanded,
    a_row_of_an_expanded_column,
    a_scalar_expanded_twice,
    broadcast_tensors_then_write,
)
def test_a_write_to_one_cell_shows_in_all_its_broadcast_copies(program: Program, barrier: str) -> None:
    check(program, barrier)


def writing_all_of_an_expanded(D: str) -> None:
    torch.arange(4.0, device=D).expand(3, 4).add_(1)


def writing_over_an_operand(D: str) -> None:
    x = torch.arange(4.0, device=D)
    torch.sub(x, x[0], out=x)


def shifting_in_place(D: str) -> None:
    x = torch.arange(4.0, device=D)
    x[1:].add_(x[:-1])


@pytest.mark.parametrize("write", [writing_all_of_an_expanded, writing_over_an_operand, shifting_in_place])
def test_a_write_with_overlapping_cells_is_refused_as_in_eager(write: Callable[[str], None]) -> None:
    with pytest.raises(RuntimeError) as eager:
        write("cpu")
    with pytest.raises(RuntimeError) as ours:
        write(D)
    assert str(eager.value) == str(ours.value)


# -- 3: .data --------------------------------------------------------------------------------------------------------


def replacing_data(D: str, sync: Sync) -> object:
    a = torch.arange(4.0, device=D)
    v = a.view(2, 2)
    sync()
    a.data = a.data + 1
    sync()
    return a, v


def writing_to_data(D: str, sync: Sync) -> object:
    a = torch.arange(4.0, device=D)
    v = a.view(2, 2)
    a.data.add_(1)
    sync()
    return a, v


def shrinking_data(D: str, sync: Sync) -> object:
    a = torch.arange(4.0, device=D)
    a.data = a.data[:3]
    sync()
    a.add_(1)
    return a


def replacing_the_data_of_a_parameter(D: str, sync: Sync) -> object:
    p = torch.nn.Parameter(data(D, 3, 2))
    (p * 2).sum().backward()
    sync()
    p.data = torch.zeros(2, device=D)
    sync()
    p.data += 3
    return p, p.data


def writing_to_the_data_of_a_result(D: str, sync: Sync) -> object:
    w = data(D, 3).requires_grad_()
    y = w.exp()
    y.data.mul_(2)
    sync()
    y.sum().backward()
    return y, w.grad


def swapping_data(D: str, sync: Sync) -> object:
    a, b = torch.zeros(2, device=D), torch.ones(3, device=D)
    va = a[:1]
    a.data, b.data = b.data, a.data
    sync()
    a[0] = 8
    va[0] = 9
    return a, b, va


@programs(
    replacing_data,
    writing_to_data,
    shrinking_data,
    replacing_the_data_of_a_parameter,
    writing_to_the_data_of_a_result,
    swapping_data,
)
def test_data_replaces_or_shares_as_in_eager(program: Program, barrier: str) -> None:
    check(program, barrier)


# -- 4: as_strided ---------------------------------------------------------------------------------------------------


def whole_storage_from_a_slice(D: str, sync: Sync) -> object:
    a = torch.arange(8, device=D)
    s = a[3:].as_strided((8,), (1,), 0)
    sync()
    s[0] = 90
    sync()
    return a, s


def overlapping_windows(D: str, sync: Sync) -> object:
    a = torch.arange(10.0, device=D)
    w = a.as_strided((4, 3), (2, 1), 1)
    sync()
    a[3] = -1
    return a, w


def a_diagonal(D: str, sync: Sync) -> object:
    a = data(D, 4, 4)
    a.as_strided((4,), (5,)).zero_()
    sync()
    return a


def of_a_transposed_slice(D: str, sync: Sync) -> object:
    a = torch.arange(24.0, device=D).view(4, 6)
    b = a[1:].t()[2:]
    s = b.as_strided((2, 3), (6, 1))
    s.mul_(-1)
    sync()
    return a, b, s


def in_place(D: str, sync: Sync) -> object:
    a = torch.arange(8, device=D)
    b = a[2:]
    b.as_strided_((2, 2), (4, 1), 1)
    sync()
    b.add_(100)
    return a, b


def scattered(D: str, sync: Sync) -> object:
    a = torch.zeros(9, device=D)
    return a, torch.as_strided_scatter(a, torch.ones(3, device=D), (3,), (4,), 0)


def with_a_gradient(D: str, sync: Sync) -> object:
    a = data(D, 8).requires_grad_()
    (a[2:].as_strided((3, 2), (1, 2), 1) ** 2).sum().backward()
    return a.grad


@programs(
    whole_storage_from_a_slice,
    overlapping_windows,
    a_diagonal,
    of_a_transposed_slice,
    in_place,
    scattered,
    with_a_gradient,
)
def test_as_strided_addresses_the_whole_storage(program: Program, barrier: str) -> None:
    check(program, barrier)
