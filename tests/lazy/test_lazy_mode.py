"""``lazy_mode()``: operations on ordinary host tensors, deferred until the block is left or a value is read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchport
from lazy.cases.oracle import counted, data


def test_inside_lazy_mode_operations_on_host_tensors_are_deferred() -> None:
    x = data("cpu", 4)
    with torchport.lazy_mode():
        with counted("Execute") as inside, counted("lazy::mul") as traced:
            y = x * 2
            z = y.sin() + x
            assert y.shape == (4,)
            assert y.device.type == "cpu"
        assert inside == [0]
        assert traced == [1]
    with counted("Execute") as later:
        assert type(y) is torch.Tensor
        assert y.device.type == "cpu"
        torch.testing.assert_close(y, data("cpu", 4) * 2)
        torch.testing.assert_close(z, (data("cpu", 4) * 2).sin() + data("cpu", 4))
        y.numpy()[0] = 5
        assert y[0] == 5
    assert later == [0], "it was materialised on leaving, and is an ordinary tensor now"


def test_reading_inside_lazy_mode_gives_the_value() -> None:
    x = data("cpu", 4)
    with torchport.lazy_mode():
        y = x * 2
        assert y.sum().item() == pytest.approx((data("cpu", 4) * 2).sum().item())
        assert (y + 1).tolist() == pytest.approx((data("cpu", 4) * 2 + 1).tolist())
        assert "tensor(" in repr(y)


def test_lazy_mode_nests() -> None:
    x = data("cpu", 4)
    with torchport.lazy_mode():
        a = x + 1
        with torchport.lazy_mode():
            b = a * 2
        with counted("Execute") as executions:
            c = b - 3
        assert executions == [0], "leaving the inner one does not end the outer one"
    torch.testing.assert_close(c, (data("cpu", 4) + 1) * 2 - 3)
    with counted("lazy::add") as traced:
        x + 1
    assert traced == [0]


def test_an_exception_inside_lazy_mode_leaves_tensors_usable() -> None:
    x = data("cpu", 4)
    made: list[torch.Tensor] = []

    def fail() -> None:
        made.append(x * 2)
        with torchport.lazy_mode():
            made.append(made[0] + 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), torchport.lazy_mode():
        fail()
    y, z = made
    torch.testing.assert_close(y, data("cpu", 4) * 2)
    torch.testing.assert_close(z + 1, data("cpu", 4) * 2 + 2)
    with counted("lazy::add") as traced:
        x + 1
    assert traced == [0]


def test_writes_inside_lazy_mode_reach_the_host_tensor() -> None:
    x = data("cpu", 4)
    view = x[2:]
    with torchport.lazy_mode():
        x.add_(1)
        view.mul_(2)
    wanted = data("cpu", 4) + 1
    wanted[2:] *= 2
    torch.testing.assert_close(x, wanted)
    torch.testing.assert_close(view, wanted[2:])


def test_training_inside_lazy_mode() -> None:
    def train() -> list[torch.Tensor]:
        model = nn.Linear(3, 2)
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(data("cpu", *p.shape, seed=i))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(data("cpu", 4, 3)).square().mean().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    wanted = train()
    with torchport.lazy_mode():
        got = train()
    torch.testing.assert_close(got, wanted)
