"""Models of pictures, and of pictures with text."""

from __future__ import annotations

import pytest

from models.checks import checks_of, each_run
from models.pictures import SUBJECTS
from models.subjects import Subject


@pytest.mark.parametrize(("subject", "check"), each_run(SUBJECTS), ids=str)
def test_a_model_of_pictures(subject: Subject, check: str) -> None:
    checks_of(subject)[check]()
