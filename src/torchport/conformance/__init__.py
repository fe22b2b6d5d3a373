"""The conformance kit: the laws of the contract, tried on a backend one by one.

::

    torchport conformance NAME                     # all of it, and the support table
    torchport conformance NAME --quick             # a part that takes about a minute
    pytest --pyargs torchport.conformance --torchport-backend NAME

A case is one law. It passes; fails; is *refused* (of an operator: the backend says that it does not do it, and why); is
*not applicable* (the backend does not declare the ability that the law is about); or is an *expected failure*, listed
with its reason in ``expected_failures.toml`` beside the backend's module. That list is strict: what is on it and passes
fails the run.
"""

from torchport.conformance.case import Case, Result, Status
from torchport.conformance.catalogue import Choice, all_cases
from torchport.conformance.expected import expected_failures
from torchport.conformance.running import run, run_case
from torchport.conformance.subject import Subject

__all__ = ["Case", "Choice", "Result", "Status", "Subject", "all_cases", "expected_failures", "run", "run_case"]
