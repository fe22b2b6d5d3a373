"""In-place writes: under autograd, through several views, by every writing call; clones, aliases (cases 5 to 8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lazy.cases.oracle import D, Program, check, data

Sync = Callable[[], None]


def programs(*functions: Program) -> pytest.MarkDecorator:
    """Runs the test once for each program."""
    return pytest.mark.parametrize("program", functions, ids=lambda f: f.__name__)


# -- 5: in-place writes that autograd sees ---------------------------------------------------------------------------


def part_of_a_result_overwritten(D: str, sync: Sync) -> object:
    w = data(D, 2, 5).requires_grad_()
    y = w * 2
    sync()
    y[:, :3] = 0
    sync()
    (y**2).sum().backward()
    return y, w.grad


def a_view_of_a_result_scaled(D: str, sync: Sync) -> object:
    w = data(D, 4, 3).requires_grad_()
    y = w.sin()
    y[1].mul_(y[0].clone())
    sync()
    y.t()[2] += 1
    (y**3).sum().backward()
    return y, w.grad


def masked_and_indexed_writes(D: str, sync: Sync) -> object:
    w = data(D, 6).requires_grad_()
    y = w.clone()
    y[torch.tensor([0, 2], device=D)] = w[3:5]
    sync()
    y.masked_fill_(y > 1, 0.5)
    y.relu_()
    sync()
    y.pow(2).sum().backward()
    return y, w.grad


def a_leaf_view_under_no_grad(D: str, sync: Sync) -> object:
    w = data(D, 3, 3).requires_grad_()
    with torch.no_grad():
        w[0].zero_()
        sync()
        w.sub_(0.5)
    (w**2).sum().backward()
    return w, w.grad


def accumulated_over_chunks(D: str, sync: Sync) -> object:
    w = data(D, 6).requires_grad_()
    out = torch.zeros(6, device=D)
    for i, part in enumerate((w * 3).chunk(3)):
        out[2 * i : 2 * i + 2] += part * i
        sync()
    out.square().sum().backward()
    return out, w.grad


@programs(
    part_of_a_result_overwritten,
    a_view_of_a_result_scaled,
    masked_and_indexed_writes,
    a_leaf_view_under_no_grad,
    accumulated_over_chunks,
)
def test_gradients_are_exact_through_writes(program: Program, barrier: str) -> None:
    check(program, barrier)


def test_a_saved_value_that_was_overwritten_is_refused_as_in_eager() -> None:
    def spoil(device: str) -> None:
        w = torch.ones(3, device=device, requires_grad=True)
        y = w.exp()
        y.add_(1)
        y.sum().backward()

    for device in ("cpu", D):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            spoil(device)


# -- 6: several views of one tensor ----------------------------------------------------------------------------------


def chunks(D: str, sync: Sync) -> object:
    a = torch.arange(6.0, device=D)
    parts = a.chunk(2)
    for i, x in enumerate(parts):
        x += 1 + i
        sync()
    return a, list(parts)


def unbound(D: str, sync: Sync) -> object:
    a = torch.zeros(3, 2, device=D)
    for i, r in enumerate(a.unbind(0)):
        r += i
        sync()
    for i, c in enumerate(a.unbind(1)):
        c *= i + 1
    return a


def split(D: str, sync: Sync) -> object:
    a = torch.arange(14.0, device=D).view(2, 7)
    for i, x in enumerate(a.split([1, 2, 4], dim=1)):
        x.sub_(i)
        sync()
    for x in torch.split(a, 3, dim=1):
        x[:, 0] = 0
    return a


def tensor_split(D: str, sync: Sync) -> object:
    a = torch.arange(7.0, device=D)
    one, two, three = a.tensor_split(3)
    two.zero_()
    sync()
    a.add_(1)
    return a, one, two, three


def iterating_over_a_tensor(D: str, sync: Sync) -> object:
    a = torch.arange(6.0, device=D).view(3, 2)
    for row in a:
        row.neg_()
        sync()
    return a


def hsplit_vsplit_dsplit(D: str, sync: Sync) -> object:
    a = torch.arange(16.0, device=D).view(2, 4, 2)
    a.vsplit(2)[1].add_(1)
    a.hsplit(2)[0].mul_(3)
    sync()
    a.dsplit(2)[1].neg_()
    return a


def views_of_chunks(D: str, sync: Sync) -> object:
    gates = data(D, 2, 8)
    i, f, g, o = gates.chunk(4, 1)
    i.sigmoid_()
    f.sigmoid_()
    sync()
    g.tanh_()
    o[:, 0] = 1
    return gates, i * g, f, o.t()


@programs(chunks, unbound, split, tensor_split, iterating_over_a_tensor, hsplit_vsplit_dsplit, views_of_chunks)
def test_writes_to_parts_reach_the_whole(program: Program, barrier: str) -> None:
    check(program, barrier)


# -- 7: out=, set_, resize_, in-place metadata -----------------------------------------------------------------------


def out_into_a_row(D: str, sync: Sync) -> object:
    a = torch.zeros(2, 3, device=D)
    returned = torch.add(torch.ones(3, device=D), 2, out=a[1])
    sync()
    return a, returned


def out_of_several_kinds(D: str, sync: Sync) -> object:
    x = data(D, 4, 4)
    out = torch.zeros(4, 4, device=D)
    torch.mm(x, x, out=out.t())
    sync()
    columns = torch.zeros(4, 8, device=D)
    torch.cat([x, x], dim=1, out=columns)
    values, indices = torch.empty(4, device=D), torch.empty(4, dtype=torch.int64, device=D)
    torch.max(x, dim=1, out=(values, indices))
    sync()
    doubled = torch.empty(0, device=D)
    torch.mul(x[0], 2, out=doubled)
    return out, columns, values, indices, doubled


def out_is_an_operand(D: str, sync: Sync) -> object:
    x = data(D, 3)
    torch.add(x, x, out=x)
    sync()
    torch.sub(x, x.sum(), out=x)
    return x


def one_element_of_a_weight(D: str, sync: Sync) -> object:
    w = torch.zeros(2, 2, 3, 3, device=D)
    w[0, 1, 0, 0] = 3
    sync()
    w[1, 0] = torch.eye(3, device=D)
    w[..., -1, -1] += 1
    return w


def set_to_another(D: str, sync: Sync) -> object:
    a, b = torch.zeros(3, device=D), torch.arange(8.0, device=D)
    v = a[1:]
    a.set_(b)
    sync()
    a[0] = 7
    c = torch.empty(0, device=D).set_(b.untyped_storage(), 2, (2, 2), (1, 3))
    sync()
    c.add_(100)
    return a, b, v, c


def set_to_nothing(D: str, sync: Sync) -> object:
    a = torch.arange(4.0, device=D)
    v = a[1:]
    a.set_()
    sync()
    return a, v


def resized_smaller(D: str, sync: Sync) -> object:
    a = torch.arange(8.0, device=D)
    v = a[6:]
    a.resize_(2, 3)
    sync()
    a[0] = 9
    return a, v


def resized_larger(D: str, sync: Sync) -> object:
    a = torch.arange(4.0, device=D)
    a.resize_(6)
    sync()
    a[4:] = 1
    b = torch.empty(0, device=D)
    b.resize_(2, 2).fill_(3)
    b.resize_as_(a[:2])
    return a, b


def transposed_in_place(D: str, sync: Sync) -> object:
    a = torch.arange(6.0, device=D).view(2, 3)
    v = a[0]
    a.t_()
    sync()
    a[0, 1] = 9
    b = torch.zeros(2, 1, 3, device=D)
    b.squeeze_(1).unsqueeze_(0).transpose_(1, 2)
    b[0, 0] = 4
    sync()
    b.swapaxes_(0, 1)
    return a, v, b


def scattered_in_place(D: str, sync: Sync) -> object:
    a = torch.zeros(3, 5, device=D)
    a.t().scatter_(0, torch.tensor([[0, 1, 2]], device=D), data(D, 1, 3))
    sync()
    a[:, 1:].index_add_(0, torch.tensor([0, 2], device=D), torch.ones(2, 4, device=D))
    a.view(-1).index_fill_(0, torch.tensor([3, 7], device=D), -1)
    sync()
    a[1].masked_scatter_(torch.tensor([True, False, True, False, True], device=D), data(D, 5))
    return a


def filled_and_zeroed(D: str, sync: Sync) -> object:
    a = torch.empty(4, 3, device=D)
    a.fill_(2)
    a[1:3].zero_()
    sync()
    a.diagonal().fill_(torch.tensor(5.0, device=D))
    torch.nn.init.ones_(a[3])
    a.fill_diagonal_(1)
    return a


@programs(
    out_into_a_row,
    out_of_several_kinds,
    out_is_an_operand,
    one_element_of_a_weight,
    set_to_another,
    set_to_nothing,
    resized_smaller,
    resized_larger,
    transposed_in_place,
    scattered_in_place,
    filled_and_zeroed,
)
def test_writing_calls_of_every_sort_mean_what_they_mean_in_eager(program: Program, barrier: str) -> None:
    check(program, barrier)


# -- 8: clones, and arguments that alias -----------------------------------------------------------------------------


def clone_is_a_barrier(D: str, sync: Sync) -> object:
    x = data(D, 5)
    y = x.clone()
    y.sin_()
    sync()
    return x + y, x, y


def contiguous_copies_only_when_it_must(D: str, sync: Sync) -> object:
    x = data(D, 3, 4)
    same, copy = x.contiguous(), x.t().contiguous()
    same[0] = 0
    copy[0] = 1
    sync()
    return x, same, copy


def reshape_copies_only_when_it_must(D: str, sync: Sync) -> object:
    x = data(D, 3, 4)
    view, copy = x.reshape(4, 3), x.t().reshape(12)
    view.add_(1)
    sync()
    copy.zero_()
    return x, view, copy


def to_copies_only_when_it_must(D: str, sync: Sync) -> object:
    x = data(D, 3)
    same, copy, other = x.to(D), x.to(D, copy=True), x.to(torch.float64)
    same.add_(1)
    sync()
    copy.zero_()
    other.mul_(2)
    return x, same, copy, other


def a_function_that_writes_to_both_its_arguments(D: str, sync: Sync) -> object:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        sync()
        b.add_(1)
        return a + b

    x = data(D, 3, 3)
    return f(x, x[0]), x, f(x[1], x)


def swapped_through_a_temporary(D: str, sync: Sync) -> object:
    x = torch.arange(4.0, device=D)
    x[0], x[3] = x[3].clone(), x[0].clone()
    sync()
    x[:2], x[2:] = x[2:], x[:2]
    return x


def a_detached_name(D: str, sync: Sync) -> object:
    w = data(D, 3).requires_grad_()
    d = w.detach()
    d.mul_(2)
    sync()
    (w * w).sum().backward()
    return w, d, w.grad


def a_value_that_was_used_before_it_was_overwritten(D: str, sync: Sync) -> object:
    x = data(D, 4)
    old = x * 1
    view_sum = x[1:].sum()
    x.zero_()
    sync()
    return old, view_sum, x


@programs(
    clone_is_a_barrier,
    contiguous_copies_only_when_it_must,
    reshape_copies_only_when_it_must,
    to_copies_only_when_it_must,
    a_function_that_writes_to_both_its_arguments,
    swapped_through_a_temporary,
    a_detached_name,
    a_value_that_was_used_before_it_was_overwritten,
)
def test_copies_are_copies_and_aliases_are_aliases(program: Program, barrier: str) -> None:
    check(program, barrier)
