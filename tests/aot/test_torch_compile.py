"""The third door: ``torch.compile`` with a backend of ours, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchport
from torchport.backends.interpreter import InterpreterBackend
from torchport.backends.interpreter.delegate import InterpreterDelegate


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend="torchport", options={"backend": "interpreter", **options})


def test_it_is_listed_among_dynamos_backends() -> None:
    assert "torchport" in torch._dynamo.list_backends()


def test_training_through_it_gives_eagers_losses_at_every_batch_size() -> None:
    def losses(wrap: Any) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        run = wrap(model)
        found = []
        for n in (8, 8, 5, 3, 5, 8):
            optimizer.zero_grad()
            loss = F.cross_entropy(run(torch.randn(n, 6)), torch.randint(0, 3, (n,)))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    torch.manual_seed(0)
    assert losses(compiled) == pytest.approx(losses(lambda m: m), rel=1e-6)


def test_buffers_inputs_that_are_written_and_python_results_are_those_of_eager() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor, scale: float) -> dict[str, Any]:
            self.count += 1
            x.mul_(scale)
            return {"x": x, "n": x.shape[0], "none": None, "sum": (x.sum(), self.count * 2)}

    ours, theirs = Counting(), Counting()
    run = compiled(ours)
    for scale in (2.0, 3.0):
        a, b = torch.ones(3), torch.ones(3)
        got, wanted = run(a, scale), theirs(b, scale)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(a, b)
    assert ours.count.item() == 2


def test_constants_of_the_function_are_inputs_of_the_graph() -> None:
    table = torch.tensor([1.0, 2.0, 3.0])

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x + table + torch.tensor([4.0, 5.0, 6.0])).cumsum(0)

    torch.testing.assert_close(compiled(f)(torch.ones(3)), f(torch.ones(3)))


class WithoutTanh(InterpreterDelegate):
    """Refuses one operator."""

    def supports(self, node: torchport.Node) -> torchport.Support:
        return torchport.Support("tanh" not in str(node.op), "there is no tanh here")


def test_what_the_backend_refuses_runs_in_the_interpreter() -> None:
    asked = WithoutTanh(InterpreterBackend())
    with torchport.BackendRegistrar("without-tanh", asked):
        run = torch.compile(lambda x: (x * 2).tanh() + 1, backend="torchport", options={"backend": "without-tanh"})
        torch.testing.assert_close(run(torch.ones(3)), torch.full((3,), 2.0).tanh() + 1)


def test_a_backend_that_does_not_exist_and_options_that_are_wrong_are_said() -> None:
    with pytest.raises(Exception, match="there is no backend 'interpeter'"):
        torch.compile(lambda x: x + 1, backend="torchport", options={"backend": "interpeter"})(torch.ones(2))
    with pytest.raises(Exception, match="have options, no modes"):
        torch.compile(lambda x: x + 1, backend="torchport", mode="max-autotune")(torch.ones(2))
