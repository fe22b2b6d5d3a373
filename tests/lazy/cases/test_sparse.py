"""Sparse tensors of every layout: conversions, arithmetic, in place and into ``out=``, gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchport
from lazy.cases.oracle import D, check, data
from lazy.cases.oracle import made as made_module
from torchport.lazy.eager import clear_fallback_ops

# PyTorch says once per process that it does not check sparse tensors unless asked to, and that CSR is in beta.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:.*sparse tensor support:UserWarning"),
]

LAYOUTS = {
    "coo": torch.sparse_coo,
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr,
    "bsc": torch.sparse_bsc,
}
DENSE = torch.tensor([[0.0, 1.0, 0.0, -2.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]])

Use = Callable[[torch.Tensor, torch.Tensor], Any]
"""A sparse tensor and a dense one, both 4 × 4, to a result."""

DEFERRED: dict[str, Use] = {
    "abs": lambda x, y: x.abs(),
    "sqrt of abs": lambda x, y: x.abs().sqrt(),
    "in place": lambda x, y: x.clone().neg_(),
    "clone": lambda x, y: x.clone(),
    "copied over": lambda x, y: x.clone().copy_(x.sin()),
    "isnan": lambda x, y: x.isnan(),
    "coo": lambda x, y: x.to_sparse(),
    "values": lambda x, y: x.to_sparse()._values(),
}
"""Done by operators for dense tensors on the indices and values."""

COMPUTED: dict[str, Use] = {
    "to_dense": lambda x, y: x.to_dense(),
    "csr": lambda x, y: x.to_sparse_csr(),
    "csc": lambda x, y: x.to_sparse_csc(),
    "bsr": lambda x, y: x.to_sparse_bsr((2, 2)),
    "times a number": lambda x, y: x * 2.5,
    "times itself": lambda x, y: x * x,
    "scaled in place": lambda x, y: x.clone().mul_(2),
    "divided": lambda x, y: x / 2,
    "plus itself": lambda x, y: x + x,
    "added in place": lambda x, y: x.clone().add_(x),
    "added to a dense one": lambda x, y: y + x,
    "added to a dense one in place": lambda x, y: y.clone().add_(x, alpha=0.5),
    "matrix product": lambda x, y: x @ y,
    "product from the left": lambda x, y: y @ x,
    "product of two": lambda x, y: x @ x,
    "product into out=": lambda x, y: torch.mm(x, y, out=torch.empty(0, device=y.device)),
    "addmm": lambda x, y: torch.addmm(y, x, y, beta=0.5, alpha=2),
    "vector": lambda x, y: x @ y[0],
    "sum": lambda x, y: x.sum(),
    "sum of a dimension": lambda x, y: torch.sum(x, 0, keepdim=True),
    "masked": lambda x, y: y.sparse_mask(x),
    "transposed": lambda x, y: x.t(),
    "a row": lambda x, y: x[1],
    "double": lambda x, y: x.double(),
    "sampled product": lambda x, y: torch.sparse.sampled_addmm(x, y, y),
    "reduced product": lambda x, y: torch.sparse.mm(x, y, "mean"),
    "softmax": lambda x, y: torch.sparse.softmax(x, 1),
    "coalesced": lambda x, y: torch.cat([x, x]).coalesce(),
    "index_select": lambda x, y: x.index_select(0, torch.tensor([1, 0], device=y.device)),
}


def made(layout: str, device: str) -> torch.Tensor:
    block = {"blocksize": (2, 2)} if layout.startswith("bs") else {}
    return DENSE.to(device).to_sparse(layout=LAYOUTS[layout], **block)  # type: ignore[call-overload, no-any-return]


def result(use: Use, layout: str, device: str) -> Any:
    try:
        return use(made(layout, device), data(device, 4, 4))
    except (RuntimeError, NotImplementedError, IndexError, AttributeError) as error:
        return error


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("use", {**DEFERRED, **COMPUTED}.values(), ids={**DEFERRED, **COMPUTED})
def test_a_sparse_tensor_gives_what_it_gives_on_the_cpu(layout: str, use: Use) -> None:
    wanted, got = result(use, layout, "cpu"), result(use, layout, D)
    if isinstance(wanted, Exception):
        assert isinstance(got, Exception), f"the CPU says {wanted}"
        return
    if isinstance(got, Exception):
        raise got
    assert (D, wanted.layout, wanted.shape) == (got.device.type, got.layout, got.shape)
    if wanted.layout is torch.sparse_coo:
        assert wanted.is_coalesced() is got.is_coalesced()
    torch.testing.assert_close(got.cpu(), wanted)


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("use", DEFERRED.values(), ids=DEFERRED)
def test_what_works_on_indices_and_values_is_no_fallback(layout: str, use: Use) -> None:
    clear_fallback_ops()
    use(made(layout, D), data(D, 4, 4))
    assert {} == torchport.executed_fallback_ops()


def test_a_sparse_gradient_is_added_to_a_parameter_without_a_fallback() -> None:
    clear_fallback_ops()
    table = torch.nn.Embedding(10, 4, sparse=True, device=D)
    table(torch.tensor([1, 1, 3], device=D)).square().sum().backward()
    before, gradient = table.weight.detach().cpu(), table.weight.grad
    assert gradient is not None
    torch.optim.SGD(table.parameters(), lr=0.5).step()
    assert {} == torchport.executed_fallback_ops()
    torch.testing.assert_close(table.weight.detach().cpu(), before - 0.5 * gradient.cpu().to_dense())


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_the_gradients_of_a_reduced_product(reduce: str) -> None:
    gradients = []
    for device in ("cpu", D):
        x, y = made("csr", device).requires_grad_(), data(device, 4, 4).requires_grad_()
        torch.sparse.mm(x, y, reduce).square().sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        gradients.append((x.grad.cpu().to_dense(), y.grad.cpu()))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("optimizer", ["SGD", "SparseAdam", "Adagrad"])
@pytest.mark.parametrize("bags", ["rows", "offsets", "weighted rows", "weighted offsets", "mean of rows"])
def test_a_bag_of_embeddings_has_a_sparse_gradient_and_trains(bags: str, optimizer: str) -> None:
    def program(D: str, sync: Callable[[], None]) -> object:
        mode = "mean" if "mean" in bags else "sum"
        module = made_module(lambda: nn.EmbeddingBag(10, 3, mode=mode, sparse=True), D)
        steps = getattr(torch.optim, optimizer)(list(module.parameters()), lr=0.1)
        indices = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9], device=D)
        arguments = (indices, torch.tensor([0, 3, 5], device=D)) if "offsets" in bags else (indices.view(2, 4),)
        weights = torch.linspace(0, 1, 8, device=D).view(arguments[0].shape) if "weighted" in bags else None
        for _ in range(3):
            steps.zero_grad()
            module(*arguments, per_sample_weights=weights).square().sum().backward()
            sync()
            steps.step()
        gradient = module.weight.grad
        assert gradient is not None
        return module.weight.detach(), gradient.is_sparse, gradient.coalesce().to_dense()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, that it does not check sparse tensors
        check(program)
