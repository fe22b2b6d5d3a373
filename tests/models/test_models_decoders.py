"""Decoders: the same, and generation."""

from __future__ import annotations

import pytest

from lazy.cases.oracle import D, counted
from models.checks import checks_of, each_run
from models.decoders import SUBJECTS
from models.runs import generated
from models.subjects import Subject


@pytest.mark.parametrize(("subject", "check"), each_run(SUBJECTS), ids=str)
def test_a_decoder(subject: Subject, check: str) -> None:
    checks_of(subject)[check]()


@pytest.mark.parametrize("way", ["greedy", "greedy, static cache"])
@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.name in ("GPT-2", "Llama")], ids=str)
def test_the_programs_of_a_generation_do_not_grow_with_its_length(subject: Subject, way: str) -> None:
    short, long = ({**subject.generates[way], "min_new_tokens": n, "max_new_tokens": n} for n in (8, 30))
    generated(subject, D, short)
    with counted("UncachedCompile") as compiles:
        generated(subject, D, long)
    # A static cache is as long as the result will be, so it has another size.
    assert compiles[0] <= (5 if "static" in way else 0)
