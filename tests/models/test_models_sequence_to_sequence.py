"""Encoder-decoders of text and speech: the same, and generation."""

from __future__ import annotations

import pytest

from models.checks import checks_of, each_run
from models.sequence_to_sequence import SUBJECTS
from models.subjects import Subject


@pytest.mark.parametrize(("subject", "check"), each_run(SUBJECTS), ids=str)
def test_an_encoder_decoder(subject: Subject, check: str) -> None:
    checks_of(subject)[check]()
