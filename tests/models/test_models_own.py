"""Recurrent networks and a U-Net, made of PyTorch's own modules."""

from __future__ import annotations

import pytest

from models.checks import checks_of, each_run
from models.own import SUBJECTS
from models.subjects import Subject


@pytest.mark.parametrize(("subject", "check"), each_run(SUBJECTS), ids=str)
def test_a_model_without_a_library(subject: Subject, check: str) -> None:
    checks_of(subject)[check]()
