"""Programs that failed once, as the sweep printed them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: F401 - what is pasted here may use it

from programs.execution import check_program, refused


def test_a_foreach_write_moves_version_counters() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t0 = torch.tensor([2.0, -0.5], device=D)
        t1 = t0 * 2
        torch._foreach_mul_([t0, t1], 2.0)
        return [t0, t1, t0._version, t1._version]

    check_program(program)


def test_a_sum_is_computed_in_the_dtype_that_it_is_given_to_fill() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t0 = torch.arange(0, 4, device=D) % 2 == 0
        t1 = t0.clone()
        torch.sum(t1, 0, out=t0)
        return [t0]

    check_program(program)


def test_a_copy_into_an_expanded_tensor_is_refused() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t2 = torch.arange(0, 1, 0.5, device=D)
        t11 = torch.zeros([2], dtype=torch.int64, device=D)
        with refused() as e_t0:
            t2.expand([3, -1]).copy_(t11)
        return [t2, e_t0]

    check_program(program)


def test_a_fill_of_an_expanded_tensor_is_taken() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t4 = torch.tensor(2.0, device=D)
        t4.expand([2]).fill_(-1.0)
        return [t4]

    check_program(program)


def test_a_number_that_a_dtype_cannot_hold_is_refused_at_once() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t0 = torch.arange(0, 4, device=D).to(torch.uint8)
        with refused() as e_t0:
            t0.fill_(-2.0)
        return [t0, e_t0]

    check_program(program)


def test_a_conversion_keeps_the_strides_of_a_view() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t5 = torch.arange(1, 3, device=D).to(torch.float16).reshape([1, 2])
        return [t5.unfold(1, 2, 1).swapaxes(-3, 2).float()]

    check_program(program)


def test_random_numbers_go_into_a_transposed_view_in_its_order() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t0 = torch.empty_strided([3, 2], [1, 3], device=D).fill_(0.5)
        t1 = torch.ones_like(t0)
        t1.T.random_(0, 5)
        t0.T.bernoulli_(0.5)
        return [t0, t1]

    check_program(program)


def test_a_write_by_a_mask_that_overlaps_what_is_written_is_refused() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t4 = torch.zeros([1, 1, 2], dtype=torch.bool, device=D)
        t12 = t4.select(0, 0)
        with refused() as e_t0:
            t12.unfold(0, 1, 3)[t12] = True
        t5 = torch.arange(3, device=D)
        with refused() as e_t1:
            t5[1:][torch.tensor([True, True], device=D)] = t5[:2]
        t5[1:][t5[:2] == 0] = t5[2:]
        t4.view(2)[:1][t4.view(2)[1:]] = True
        t6 = torch.tensor([True, False, True], device=D)
        with refused() as e_t2:
            t6[t6] = torch.tensor([False, True], device=D)
        return [t4, t5, t6, e_t0, e_t1, e_t2]

    check_program(program)


def test_a_write_through_wider_elements_of_a_storage_that_is_no_multiple_of_them() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t0 = torch.linspace(-3, 3, 7, device=D)
        t1 = torch.tanh(t0)
        t1.set_(t0.untyped_storage(), 2, [2, 2], [2, 1])
        torch.view_as_complex(t1).copy_(torch.tensor(-2, device=D))
        return [t0, t1]

    check_program(program)


def test_gradients_that_meet_may_differ_in_strides_that_lead_nowhere() -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        t0 = torch.zeros(4, device=D).as_strided([2, 1], [2, 1], 1)
        t0.t_()
        t3 = t0.detach().clone().requires_grad_()
        (t3 * t3).sum().backward()
        return [t3.grad]

    check_program(program)
