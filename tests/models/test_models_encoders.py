"""Encoders of text: evaluation, training, saving, in full and in low precision."""

from __future__ import annotations

import pytest

from models.checks import checks_of, each_run
from models.encoders import SUBJECTS
from models.subjects import Subject


@pytest.mark.parametrize(("subject", "check"), each_run(SUBJECTS), ids=str)
def test_an_encoder(subject: Subject, check: str) -> None:
    checks_of(subject)[check]()
