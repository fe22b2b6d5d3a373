"""What ``pytest --pyargs torchport.conformance --torchport-backend NAME`` collects: a test for each case."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from torchport.conformance.case import Case, Status
from torchport.conformance.running import run
from torchport.conformance.subject import Subject


def test_case(conformance_case: Case, conformance_subject: Subject, conformance_expected: Mapping[str, str]) -> None:
    """The law holds; what is refused or does not apply is skipped with the reason."""
    (result,) = run(conformance_subject, [conformance_case], conformance_expected)
    if result.failed:
        pytest.fail(f"{result.status}: {result.case.law}\n{result.text}\n{result.detail}", pytrace=False)
    elif result.status is Status.EXPECTED_FAILURE:
        pytest.xfail(result.text)
    elif result.status is not Status.PASS:
        pytest.skip(f"{result.status}: {result.text}")
