"""Architectures that compute in ways of their own; all that can be made small: ``tests/models/architectures.py``."""

from __future__ import annotations

import pytest

from models.architectures import compared, prepared

UNUSUAL = (
    "deberta-v2",  # relative positions, gathered
    "fnet",  # Fourier transforms
    "longformer",  # windows by as_strided
    "nystromformer",  # an iterated inverse
    "rwkv",  # recurrent, with a state that is updated in place
    "tapas",  # segments, by scattering
    "wav2vec2-conformer",  # convolutions over sound
    "xlnet",  # two streams of attention, einsum
)


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.filterwarnings("ignore")  # of the libraries; which model warns of what is none of this test's business
def test_an_unusual_architecture_gives_what_it_gives_on_the_cpu(name: str) -> None:
    config, batch = prepared(name)
    for training in (False, True):
        assert compared(config, batch, training) in ("=", "≈", "–")
