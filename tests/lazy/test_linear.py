"""``linear`` is one operation, and rounds as eager PyTorch does, whose products depend on layouts and on gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import torchport
from torchport.config import settings

DEVICE = settings.device_name
INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a row": lambda x: x[0, 0, 0],
    "a matrix": lambda x: x[0, 0],
    "a transposed matrix": lambda x: x[0, 0, :4, :4].t(),
    "three dimensions": lambda x: x[0],
    "three dimensions, the first two transposed": lambda x: x[0].transpose(0, 1),
    "three dimensions, the last two transposed": lambda x: x[0, :, :4, :4].transpose(1, 2),
    "three dimensions, expanded": lambda x: x[0, :1].expand(3, 5, 4),
    "three dimensions, with gaps": lambda x: x[0, :, ::2],
    "three dimensions, no elements": lambda x: x[0, :, :0].transpose(0, 1),
    "four dimensions": lambda x: x,
    "four dimensions, transposed": lambda x: x.transpose(1, 2),
}


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", INPUTS)
def test_results_and_gradients_are_the_cpus_to_the_last_bit(name: str, with_bias: bool, trained: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(2, 3, 5, 4, generator=generator) * 3
    weight, bias = torch.randn(7, 4, generator=generator), torch.randn(7, generator=generator)
    found = []
    for device in ("cpu", DEVICE):
        x = whole.to(device, copy=True).requires_grad_()
        w, b = (t.to(device, copy=True).requires_grad_(trained) for t in (weight, bias))
        y = F.linear(INPUTS[name](x), w, b if with_bias else None)
        with torch.no_grad():
            again = F.linear(INPUTS[name](x), w, b if with_bias else None)
        y.backward(torch.cos(torch.arange(y.numel(), device=device)).view(y.shape))
        found.append([y.detach(), again, *[t.grad for t in (x, w, b) if t.grad is not None]])
    assert len(found[0]) == len(found[1])
    for wanted, got in zip(*found, strict=True):
        assert wanted.stride() == got.stride()
        assert torch.equal(wanted, got.cpu())


def test_an_input_that_is_a_matrix_in_memory_stays_whole() -> None:
    w, b = torch.ones(7, 4).to(DEVICE).requires_grad_(), torch.ones(7).to(DEVICE)
    for x in (torch.ones(5, 4), torch.ones(2, 5, 4)):
        text = torchport.debug.ir_text(F.linear(x.to(DEVICE), w, b))
        assert 1 == text.count("aten.")
        assert "aten.linear" in text


def test_a_product_that_cannot_be_says_so_as_eager_does() -> None:
    for x in (torch.zeros(5, 3), torch.zeros(2, 5, 3), torch.zeros(5, 2, 3).transpose(0, 1)):
        errors = []
        for device in ("cpu", DEVICE):
            with pytest.raises(RuntimeError) as caught:
                F.linear(x.to(device), torch.zeros(7, 4, device=device).requires_grad_())
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
