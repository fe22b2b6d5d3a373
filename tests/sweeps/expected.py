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
class Expectation:
    """Something that a sweep finds and that has a reason: a failure, a fallback, another layout than eager's.

    Attributes:
        op: the operator's full name.
        reason: what is in the way.
        modes: in which modes; all if empty.
        dtypes: for which dtypes; all if empty.
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


_SPARSE = "a kernel for sparse tensors that reads their memory; a graph holds dense values, so it runs on the host"
_SUM_OF_GRADIENTS = (
    "autograd adds two gradients (without elements) in place where it alone holds the first; one that has a Python "
    "object it does not hold alone (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace)"
)

FAILURES: tuple[Expectation, ...] = ()
FALLBACKS = (
    Expectation("sparse.mm.reduce", _SPARSE),
    Expectation("sparse.sampled_addmm", _SPARSE),
    Expectation("to_sparse", _SPARSE, modes=frozenset({"bwdbwd"})),
)
LAYOUTS = (
    Expectation("linalg.qr", _SUM_OF_GRADIENTS, modes=frozenset({"bwdbwd"})),
    Expectation("qr", _SUM_OF_GRADIENTS, modes=frozenset({"bwdbwd"})),
    Expectation("nn.functional.rms_norm", _SUM_OF_GRADIENTS, modes=frozenset({"bwdbwd"})),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a sweep found which is not as on the CPU.

    Attributes:
        kind: ``failure``, ``fallback``, ``layout`` or ``reloading``.
        result: where.
        text: what.
        reason: why it is expected; empty if it is not.
    """

    kind: str
    result: OpResult
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results of a sweep, set against what is expected.

    Attributes:
        findings: everything that is not as on the CPU.
        needless: operators that are expected not to be as on the CPU, and are, with the kind.
    """

    findings: tuple[Finding, ...]
    needless: tuple[tuple[str, OpResult], ...]

    @property
    def unexpected(self) -> tuple[Finding, ...]:
        """The findings without a reason."""
        return tuple(f for f in self.findings if not f.reason)

    @property
    def ok(self) -> bool:
        """Everything is as expected."""
        return not self.unexpected and not self.needless


def judge(
    results: Iterable[OpResult],
    failures: Iterable[Expectation] = FAILURES,
    fallbacks: Iterable[Expectation] = FALLBACKS,
    layouts: Iterable[Expectation] = LAYOUTS,
    reloads: Iterable[Expectation] = (),
) -> Verdict:
    """Finds what is not as on the CPU, and what was expected not to be and is."""
    findings, needless = [], []
    kinds = (
        ("failure", tuple(failures)),
        ("fallback", tuple(fallbacks)),
        ("layout", tuple(layouts)),
        ("reloading", tuple(reloads)),
    )
    for result in results:
        if result.status is Status.SKIP:
            continue
        texts = {
            "failure": f"{result.status}: {result.error}" if result.failed else "",
            "fallback": ", ".join(f"{name} ×{n}" for name, n in result.fallbacks.items()),
            "layout": result.layout,
            "reloading": result.reloading,
        }
        for kind, expected in kinds:
            reason = next((e.reason for e in expected if e.covers(result)), "")
            if texts[kind]:
                findings.append(Finding(kind, result, texts[kind], reason))
            elif reason:
                needless.append((kind, result))
    return Verdict(tuple(findings), tuple(needless))
