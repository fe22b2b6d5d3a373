"""Attention: the kernel that eager takes on the CPU, or the products it consists of where the backend refuses that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

import torchport
from lazy.cases.oracle import D, check, data
from torchport.backend import Node, Support
from torchport.backends.interpreter import InterpreterBackend
from torchport.lazy.eager import clear_fallback_ops

FLASH = "lazy::_scaled_dot_product_flash_attention_for_cpu"


class WithoutFlash(InterpreterBackend):
    """Refuses the gradient of the kernel, as a compiler without a decomposition of it would."""

    def supports(self, node: Node) -> Support:
        refused = "flash_attention_for_cpu_backward" in str(node.op)
        return Support(False, "its gradient has no decomposition") if refused else super().supports(node)


@pytest.fixture
def without_flash() -> Iterator[None]:
    with torchport.BackendRegistrar("without_flash", WithoutFlash):
        torchport.use("without_flash")
        try:
            yield
        finally:
            torchport.use("interpreter")


def traced() -> bool:
    return FLASH in torchport.metrics.counter_names()


@pytest.mark.parametrize("mask", ["none", "boolean", "additive", "causal"])
def test_values_and_gradients_are_eagers(mask: str) -> None:
    def program(D: str, sync: object) -> object:
        q, k, v = (data(D, 2, 3, 7, 8, seed=i).requires_grad_() for i in range(3))
        given = None if mask in ("none", "causal") else data(D, 7, 7, seed=4)
        given = given > -1 if given is not None and mask == "boolean" else given
        y = attention(q, k, v, given, is_causal=mask == "causal")
        y.square().sum().backward()
        return y, q.grad, k.grad, v.grad

    torchport.metrics.reset()
    check(program, rtol=0, atol=0)  # the same kernel: to the last bit
    assert traced()


def test_the_program_decides_as_in_eager() -> None:
    q = data(D, 1, 2, 4, 8)
    torchport.metrics.reset()
    with sdpa_kernel(SDPBackend.MATH):
        attention(q, q, q)
    attention(q, q, q, dropout_p=0.5)  # eager's kernel for the CPU has no dropout
    assert not traced()


@pytest.mark.usefixtures("without_flash")
def test_a_backend_that_refuses_the_kernel_is_given_the_products() -> None:
    q = data(D, 1, 2, 4, 8).requires_grad_()
    torchport.metrics.reset()
    clear_fallback_ops()
    y = attention(q, q, q)
    y.sum().backward()
    assert not traced()
    assert {} == torchport.executed_fallback_ops()
    torch.testing.assert_close(y.detach().cpu(), attention(*[q.detach().cpu()] * 3))
