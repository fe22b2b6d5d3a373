"""What cannot pass, each with its reason, and what is asked of an operator in another way than of the rest.

Strict: an expected failure that passes is reported as an error, so that the list only ever holds what is true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sweeps.records import OpResult, Status

UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
"""Operators whose results nobody has written: their values are not compared."""

HOST_ARGUMENTS = {"tensor_split": "PyTorch wants the places to split at on the CPU, on every device"}
"""Operators whose tensor arguments other than the input stay on the CPU, as they do in OpInfo itself."""


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    """An operator that cannot pass.

    Attributes:
        op: its full name.
        modes: in which modes; all if empty.
        dtypes: for which dtypes; all if empty.
        reason: what is in the way.
    """

    op: str
    reason: str
    modes: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()

    def covers(self, result: OpResult) -> bool:
        """Whether it is about this result."""
        return (
            self.op == result.name
            and (not self.modes or result.mode in self.modes)
            and (not self.dtypes or result.dtype in self.dtypes)
        )


_CSR = "no kernels are registered for compressed sparse tensors (CSR, CSC, BSR, BSC) on the device"
_BY_DEVICE_NAME = (
    "PyTorch chooses the dtype that it accumulates in by the name of the device, and only for 'cpu' does it choose "
    "float32 (torch/nn/modules/linear_cross_entropy_options.py, _AUTO_DEFAULTS)"
)

EXPECTED = (
    ExpectedFailure("sparse.mm.reduce", _CSR),
    ExpectedFailure("sparse.sampled_addmm", _CSR),
    ExpectedFailure(
        "nn.functional.linear_cross_entropy.chunked_none",
        _BY_DEVICE_NAME,
        modes=frozenset({"fwd"}),
        dtypes=frozenset({"bfloat16", "float16"}),
    ),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results of a sweep, set against what is expected."""

    unexpected_failures: tuple[OpResult, ...]
    expected_failures: tuple[tuple[OpResult, str], ...]
    unexpected_passes: tuple[OpResult, ...]

    @property
    def ok(self) -> bool:
        """Everything is as expected."""
        return not self.unexpected_failures and not self.unexpected_passes


def judge(results: Iterable[OpResult], expected: Iterable[ExpectedFailure] = EXPECTED) -> Verdict:
    """Sorts results into failures nobody expects, failures that are expected, and expected failures that pass."""
    expected = tuple(expected)
    failures, known, passes = [], [], []
    for result in results:
        entry = next((e for e in expected if e.covers(result)), None)
        if result.failed and entry is None:
            failures.append(result)
        elif result.failed and entry is not None:
            known.append((result, entry.reason))
        elif result.status is Status.PASS and entry is not None:
            passes.append(result)
    return Verdict(tuple(failures), tuple(known), tuple(passes))
