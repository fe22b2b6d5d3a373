"""Modules with state of their own, fused cells, sparse gradients, losses (cases 19 and 20)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from lazy.cases.oracle import D as DEVICE
from lazy.cases.oracle import check, data, digits, made

Sync = Callable[[], None]


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, by name."""
    return dict(module.state_dict())


# -- 19: running statistics ------------------------------------------------------------------------------------------

NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (8, 4)),
    "BatchNorm1d of sequences": (lambda: nn.BatchNorm1d(4), (8, 4, 5)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2), (3, 2, 3, 3, 3)),
    "BatchNorm2d, cumulative average": (lambda: nn.BatchNorm2d(3, momentum=None), (4, 3, 5, 5)),
    "BatchNorm2d, no affine": (lambda: nn.BatchNorm2d(3, affine=False), (4, 3, 5, 5)),
    "BatchNorm2d, no statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 5, 5)),
    "BatchNorm2d, channels last": (lambda: nn.BatchNorm2d(3).to(memory_format=torch.channels_last), (4, 3, 5, 5)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4, track_running_stats=True), (8, 4, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (4, 3, 5, 5)),
    "InstanceNorm2d, no statistics": (lambda: nn.InstanceNorm2d(3), (4, 3, 5, 5)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (4, 4, 5, 5)),
    "LayerNorm": (lambda: nn.LayerNorm((5, 5)), (4, 3, 5, 5)),
    "RMSNorm": (lambda: nn.RMSNorm(5), (4, 3, 5)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (4, 3, 5, 5)),
}


@pytest.mark.parametrize("name", NORMS)
def test_statistics_are_kept_over_three_steps_and_used_in_evaluation(name: str, barrier: str) -> None:
    factory, sizes = NORMS[name]

    def program(D: str, sync: Sync) -> object:
        norm = made(factory, D)
        outputs, gradients = [], []
        for i in range(3):
            x = (data(D, *sizes, seed=i) * 3 + i).requires_grad_()
            y = norm(x)
            sync()
            y.square().sum().backward()
            gradients.append(x.grad)
            outputs.append(y)
        norm.eval()
        with torch.no_grad():
            outputs.append(norm(data(D, *sizes, seed=9)))
        return outputs, gradients, state(norm), [p.grad for p in norm.parameters()]

    check(program, barrier, rtol=1e-4, atol=1e-4)


def test_the_statistics_really_moved() -> None:
    norm = nn.BatchNorm1d(4).to(DEVICE)
    for _ in range(3):
        norm(data(DEVICE, 16, 4) + 5)
    assert norm.num_batches_tracked.item() == 3
    assert norm.running_mean.mean().item() > 1


def test_statistics_in_evaluation_stay(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        norm = nn.BatchNorm2d(3).to(D)
        norm(data(D, 4, 3, 5, 5))
        sync()
        norm.eval()
        y = norm(data(D, 4, 3, 5, 5, seed=2) * 100)
        norm.train()
        with torch.no_grad():
            z = norm(data(D, 4, 3, 5, 5, seed=3))
        return y, z, state(norm)

    check(program, barrier)


def test_statistics_are_shared_by_whoever_holds_the_buffer(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        norm = nn.BatchNorm1d(4).to(D)
        held = norm.running_mean
        view = held[1:]
        norm(data(D, 16, 4) + 5)
        sync()
        return held, view, norm.running_var

    check(program, barrier)


def test_frozen_and_reset_statistics(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        norm = nn.BatchNorm1d(4).to(D)
        norm(data(D, 16, 4) + 5)
        sync()
        before = norm.running_mean.clone()
        norm.reset_running_stats()
        sync()
        norm(data(D, 16, 4) - 5)
        return before, state(norm)

    check(program, barrier)


# -- 20: layers ------------------------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(4, 3), (5, 4)),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (2, 3, 8)),
    "Conv2d strided": (lambda: nn.Conv2d(3, 4, 3, stride=2, dilation=2, padding=2), (2, 3, 9, 9)),
    "Conv2d grouped": (lambda: nn.Conv2d(4, 4, 3, groups=2, bias=False), (2, 4, 6, 6)),
    "Conv2d circular": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 6)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), (2, 3, 4, 4)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 3, 6, 6)),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1), (2, 3, 6, 6)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), (2, 3, 7, 5)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (2, 8, 3, 3)),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), (2, 2, 6, 6)),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), (2, 4, 3, 3)),
    "Upsample bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
    "Unfold": (lambda: nn.Unfold(2), (2, 3, 4, 4)),
    "Fold": (lambda: nn.Fold((4, 4), 2, stride=2), (2, 12, 4)),
    "PReLU": (lambda: nn.PReLU(), (4, 5)),
    "GLU": (lambda: nn.GLU(), (4, 6)),
    "Softmax2d": (lambda: nn.Softmax2d(), (2, 3, 4, 4)),
    "MultiheadAttention": (lambda: _SelfAttention(), (2, 5, 8)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 5, 8)),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 2, enable_nested_tensor=False),
        (5, 2, 8),
    ),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (5, 4)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), (5, 4)),
}


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, weights = self.attention(x, x, x)
        return torch.cat([y, weights], dim=2)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_forward_backward_and_in_evaluation(name: str, barrier: str) -> None:
    factory, sizes = LAYERS[name]

    def program(D: str, sync: Sync) -> object:
        torch.manual_seed(0)
        layer = made(factory, D)
        x = data(D, *sizes).requires_grad_()
        y = layer(x)
        sync()
        y.square().sum().backward()
        sync()
        layer.eval()
        with torch.no_grad():
            evaluated = layer(x)
        return y, x.grad, [p.grad for p in layer.parameters()], evaluated, state(layer)

    check(program, barrier, rtol=1e-4, atol=1e-4)


def test_pixel_shuffle_functions(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        x = data(D, 2, 8, 3, 3)
        y = F.pixel_shuffle(x, 2)
        sync()
        y[0, 0] = 0
        return x, y, F.pixel_unshuffle(y, 2)

    check(program, barrier)


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: nn.RNN(3, 4, num_layers=2),
    "RNN relu": lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False),
    "LSTM": lambda: nn.LSTM(3, 4, num_layers=2),
    "LSTM bidirectional": lambda: nn.LSTM(3, 4, bidirectional=True),
    "LSTM projected": lambda: nn.LSTM(3, 4, proj_size=2),
    "LSTM dropout": lambda: nn.LSTM(3, 4, num_layers=2, dropout=0.5),
    "GRU": lambda: nn.GRU(3, 4, num_layers=2),
    "GRU bidirectional": lambda: nn.GRU(3, 4, bidirectional=True),
}


# The host says once that its oneDNN kernels have no projection; that is about the oracle, not about the device.
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_network_forward_and_backward(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        network = made(RECURRENT[name], D)
        torch.manual_seed(0)
        x = data(D, 5, 2, 3).requires_grad_()
        y, hidden = network(x)
        sync()
        y2, hidden = network(x, hidden)
        (y.sum() + y2.square().sum()).backward()
        return y, y2, hidden, x.grad, [p.grad for p in network.parameters()]

    check(program, barrier, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_network_on_packed_sequences(kind: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        network = made(lambda: getattr(nn, kind)(3, 4), D)
        packed = nn.utils.rnn.pack_padded_sequence(data(D, 5, 3, 3), torch.tensor([5, 3, 2]))
        y, _ = network(packed)
        sync()
        padded, lengths = nn.utils.rnn.pad_packed_sequence(y)
        return padded, lengths.tolist()

    check(program, barrier)


CELLS: dict[str, Callable[[], nn.Module]] = {
    "RNNCell": lambda: nn.RNNCell(3, 4),
    "RNNCell relu": lambda: nn.RNNCell(3, 4, nonlinearity="relu"),
    "LSTMCell": lambda: nn.LSTMCell(3, 4),
    "GRUCell": lambda: nn.GRUCell(3, 4),
    "GRUCell without bias": lambda: nn.GRUCell(3, 4, bias=False),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_step_by_step(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        cell = made(CELLS[name], D)
        hidden: Any = None
        for i in range(4):
            hidden = cell(data(D, 2, 3, seed=i), hidden)
            sync()
        out = hidden[0] if isinstance(hidden, tuple) else hidden
        out.sum().backward()
        return hidden, [p.grad for p in cell.parameters()]

    check(program, barrier)


def embedded(D: str, sync: Sync, **kwargs: Any) -> tuple[nn.Embedding, torch.Tensor]:
    table = made(lambda: nn.Embedding(7, 3, **kwargs), D)
    assert isinstance(table, nn.Embedding)
    y = table(digits(D, 7, 2, 5))
    sync()
    y.square().sum().backward()
    return table, y


@pytest.mark.parametrize(
    "kwargs", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}, {"max_norm": 0.5}], ids=lambda k: str(k)
)
def test_an_embedding_with_a_dense_gradient(kwargs: dict[str, Any], barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        table, y = embedded(D, sync, **kwargs)
        return y, table.weight, table.weight.grad

    check(program, barrier)


# PyTorch says once per process that it does not check sparse tensors unless asked to.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizer", ["none", "SGD", "SparseAdam", "Adagrad"])
def test_an_embedding_with_a_sparse_gradient(optimizer: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        table, y = embedded(D, sync, sparse=True)
        gradient = table.weight.grad
        assert gradient is not None
        assert gradient.is_sparse
        assert gradient.device.type == torch.device(D).type
        dense = gradient.to_dense()
        sync()
        if optimizer != "none":
            getattr(optim, optimizer)(table.parameters(), lr=0.1).step()
        return y, dense, table.weight

    check(program, barrier)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_embedding_bag(mode: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        bag = made(lambda: nn.EmbeddingBag(7, 3, mode=mode), D)
        y = bag(digits(D, 7, 6), torch.tensor([0, 2, 2], device=D))
        sync()
        y.square().sum().backward()
        return y, next(bag.parameters()).grad

    check(program, barrier)


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
    "cross_entropy ignoring": lambda x, t: F.cross_entropy(x, t, ignore_index=1, reduction="sum"),
    "nll": lambda x, t: F.nll_loss(F.log_softmax(x, 1), t),
    "bce with logits": lambda x, t: F.binary_cross_entropy_with_logits(x, F.one_hot(t, 4).float()),
    "kl": lambda x, t: F.kl_div(F.log_softmax(x, 1), F.softmax(-x, 1), reduction="batchmean"),
    "smooth l1": lambda x, t: F.smooth_l1_loss(x, t[:, None].float().expand_as(x)),
    "huber": lambda x, t: F.huber_loss(x, x.detach().flip(0)),
    "multi margin": lambda x, t: F.multi_margin_loss(x, t),
    "ctc": lambda x, t: F.ctc_loss(
        F.log_softmax(x[:, None, :], 2), t[None, :2].clamp(min=1), torch.tensor([6]), torch.tensor([2])
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        x = data(D, 6, 4).requires_grad_()
        loss = LOSSES[name](x, digits(D, 4, 6))
        sync()
        loss.backward()
        return loss, x.grad

    check(program, barrier)
