"""Models without a library: language models of LSTM and GRU, on packed sequences too, and a U-Net."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models.subjects import VOCABULARY, Subject, noise, tokens


class RecurrentLanguageModel(nn.Module):
    """Embedding, a recurrent network of two layers with dropout, and a head that shares the embedding's weight."""

    def __init__(self, network: type[nn.RNNBase], packed: bool) -> None:
        super().__init__()
        self.packed = packed
        self.embedding = nn.Embedding(VOCABULARY, 24)
        self.network = network(24, 24, num_layers=2, batch_first=True, dropout=0.2)  # type: ignore[call-arg]
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(24, VOCABULARY)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: torch.Tensor, lengths: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """Loss, logits, and the state after the last token."""
        x = self.dropout(self.embedding(input_ids))
        if self.packed:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            hidden, state = self.network(packed)
            hidden, _ = pad_packed_sequence(hidden, batch_first=True, total_length=x.shape[1])
        else:
            hidden, state = self.network(x)
        logits = self.head(self.dropout(hidden))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits, "state": state}


def _sentences() -> dict[str, Any]:
    ids, lengths = tokens(3, 8), torch.tensor([5, 8, 3])
    labels = ids.roll(-1, 1)
    labels[torch.arange(8) >= lengths[:, None] - 1] = -100
    return {"input_ids": ids, "lengths": lengths, "labels": labels}


class _Block(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Dropout2d(0.1),
        )


class UNet(nn.Module):
    """Two levels down by pooling, two up by transposed convolutions, with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = _Block(3, 8), _Block(8, 16), _Block(16, 24)
        self.up_second, self.up_first = nn.ConvTranspose2d(24, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.left_second, self.left_first = _Block(32, 16), _Block(16, 8)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and logits of each pixel."""
        first = self.first(pixels)
        second = self.second(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        up = self.left_second(torch.cat([self.up_second(bottom), second], 1))
        up = self.left_first(torch.cat([self.up_first(up), first], 1))
        logits = self.head(F.interpolate(up, size=pixels.shape[-2:], mode="bilinear"))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def _recurrent(name: str, network: type[nn.RNNBase], packed: bool) -> Subject:
    return Subject(
        name,
        lambda _: RecurrentLanguageModel(network, packed),
        _sentences,
        attention=("eager",),
        checkpoints=False,
        own_kernels=True,
    )


SUBJECTS = (
    _recurrent("LSTM", nn.LSTM, packed=False),
    _recurrent("LSTM, packed", nn.LSTM, packed=True),
    _recurrent("GRU", nn.GRU, packed=False),
    _recurrent("GRU, packed", nn.GRU, packed=True),
    Subject(
        "U-Net",
        lambda _: UNet(),
        lambda: {"pixels": noise(2, 3, 16, 16), "labels": tokens(2, 16, 16) % 3},
        attention=("eager",),
        checkpoints=False,
    ),
)
