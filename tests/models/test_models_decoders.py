"""Decoders: the same, and generation."""

from __future__ import annotations

import pytest

from models.checks import checks_of, each_run
from models.decoders import SUBJECTS
from models.subjects import Subject


@pytest.mark.parametrize(("subject", "check"), each_run(SUBJECTS), ids=str)
def test_a_decoder(subject: Subject, check: str) -> None:
    checks_of(subject)[check]()
