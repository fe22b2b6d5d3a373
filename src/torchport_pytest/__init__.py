"""The pytest plugin of torchport: one test for each case of the conformance kit.

::

    pytest --pyargs torchport.conformance --torchport-backend mine

A package of its own, so that pytest, which imports the plugins of everything that is installed, does not import torch
where nobody has asked for a backend. The name may also stand in the configuration (``torchport_backend = "mine"``); a
``conftest.py`` may register the backend (``torchport.register_backend``) where no entry point does.
"""

from __future__ import annotations

from typing import Any

import pytest

BACKEND_OPTION = "torchport_backend"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--torchport-backend`` and what goes with it."""
    group = parser.getgroup("torchport", "the conformance kit of torchport")
    group.addoption("--torchport-backend", metavar="NAME", help="the backend that the kit's cases are run on")
    group.addoption("--torchport-quick", action="store_true", help="the quick part of the kit")
    group.addoption(
        "--torchport-only", action="append", default=[], metavar="PATTERN", help="cases of the kit by name or family"
    )
    parser.addini(BACKEND_OPTION, "the backend that the kit's cases are run on")


def backend_of(config: pytest.Config) -> str:
    """The backend that was asked for; empty without one."""
    return str(config.getoption("--torchport-backend") or config.getini(BACKEND_OPTION) or "")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each case, wherever a test takes a ``conformance_case``."""
    if "conformance_case" not in metafunc.fixturenames:
        return
    cases: list[Any] = []
    if backend_of(metafunc.config):
        # Here: whoever has not asked for a backend does not wait for torch.
        from torchport.conformance.catalogue import Choice, all_cases

        only = tuple(metafunc.config.getoption("--torchport-only"))
        cases = list(all_cases(Choice(bool(metafunc.config.getoption("--torchport-quick")), only)))
    metafunc.parametrize("conformance_case", cases, ids=lambda case: case.name)


@pytest.fixture(scope="session")
def conformance_subject(request: pytest.FixtureRequest) -> Any:
    """The backend, found and available.

    Raises:
        BackendNotAvailableError: it cannot be used here: a backend that should be there fails, and is not skipped.
    """
    from torchport.conformance.subject import Subject
    from torchport.errors import BackendNotAvailableError

    subject = Subject(backend_of(request.config))
    if not subject.availability:
        raise BackendNotAvailableError(subject.name, subject.availability.reason)
    return subject


@pytest.fixture(scope="session")
def conformance_expected(conformance_subject: Any) -> Any:
    """The backend's expected failures."""
    from torchport.conformance.expected import expected_failures

    return expected_failures(conformance_subject.owner)
