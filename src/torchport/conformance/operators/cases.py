"""A case for each operator and dtype: its calls on the lazy device against the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torchport import metrics
from torchport.config import override, settings
from torchport.conformance.case import Case, Door, NotApplicable, Refused, Violation
from torchport.conformance.comparison import check_form, check_values, on_host, precise
from torchport.conformance.operators.overloads import core_overloads, has_values, is_random, returns_views
from torchport.conformance.operators.samples import OperatorCall, chosen_calls, copied, recorded_calls, written
from torchport.conformance.subject import Subject
from torchport.errors import StrictModeError
from torchport.ir.inference import has_mask
from torchport.lazy.recording import NO_REASON
from torchport.lazy.sync import sync

FAMILY = "operators"
D = settings.device_name
_SEED = 11


def operator_cases(dtypes: Iterable[str], samples: int, everything: bool = False) -> Iterator[Case]:
    """A case for each operator of core ATen and each dtype; for ``everything``, each operator that OpInfo leads to."""
    for name in dtypes:
        dtype = getattr(torch, name)
        overloads: Sequence[OpOverload] = core_overloads()
        if everything:
            overloads = sorted({*overloads, *recorded_calls(dtype)}, key=str)
        for op in overloads:
            yield Case(
                FAMILY,
                f"{FAMILY}.{op}[{name}]",
                f"{op} gives in {name} what it gives on the CPU, or is refused with a reason.",
                partial(_run, op, dtype, samples),
                Door.LAZY,
                quick=True,
                operator=str(op),
                dtype=name,
            )


def _run(op: OpOverload, dtype: torch.dtype, samples: int, subject: Subject) -> None:
    with torch.no_grad():
        calls = chosen_calls(op, dtype, samples)
        if not calls:
            raise NotApplicable(f"the CPU has no call of it in {str(dtype).removeprefix('torch.')}")
        if not subject.capabilities.dynamic_outputs:
            # What a mask selects is of a size that depends on values; with other indices the operator is one as others.
            calls = [call for call in calls if not has_mask(op, call.args)] or calls
        refusals, deferred = [], []
        for call in calls:
            try:
                deferred.append((call, _deferred(call)))
            except _RefusedCall as refusal:
                refusals.append(str(refusal))
        if deferred:
            with _compiler_failures(subject) as interpreted:
                sync(wait=False)
                for call, got in deferred:
                    _compare(call, got, subject)
            refusals += interpreted
        if refusals:
            reason = refusals[0]
            if reason.strip() in ("", NO_REASON):
                raise Violation("it is refused without a reason")
            some = "" if len(refusals) == len(calls) else f"{len(refusals)} of {len(calls)} calls: "
            raise Refused(f"{some}{reason}")


class _RefusedCall(Exception):  # noqa: N818 - a signal, not an error
    """The backend refuses the call; the text is its reason."""


def _deferred(call: OperatorCall) -> Any:
    """The results of a call on the device, not computed yet."""
    args, kwargs = pytree.tree_map(_placed, copied((call.args, call.kwargs)))
    takes_device = any(a.name == "device" for a in call.op._schema.arguments)
    if takes_device and not any(isinstance(t, torch.Tensor) for t in pytree.tree_leaves((args, kwargs))):
        kwargs = {**kwargs, "device": torch.device(D)}
    if is_random(call.op):
        torch.manual_seed(_SEED)
    with override(strict_fallback=True):
        try:
            results = written(call.op, args, kwargs)
            if returns_views(call.op):
                # Else the host would look at the memory of the argument, and the backend have nothing to do.
                results = pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, results)
        except StrictModeError as error:
            raise _RefusedCall(str(error).rpartition("which strict mode forbids: ")[2]) from error
    return results


def _placed(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.to(D)
    return torch.device(D) if isinstance(x, torch.device) and x.type == "cpu" else x


@contextlib.contextmanager
def _compiler_failures(subject: Subject) -> Iterator[list[str]]:
    """Why the interpreter ran what the backend's compiler failed on, for what was compiled inside."""
    reasons: list[str] = []
    before = metrics.counter_value("CompilerFallback")
    yield reasons
    if metrics.counter_value("CompilerFallback") > before:
        told = list(getattr(subject.backend, "fallbacks", {}).values())
        reasons.append(f"its compiler failed, and the interpreter runs it: {told[-1] if told else 'no reason kept'}")


def _compare(call: OperatorCall, got: Any, subject: Subject) -> None:
    if is_random(call.op):
        torch.manual_seed(_SEED)
    wanted = call.on_cpu()
    got = on_host(got)
    check_form(wanted, got)
    if not has_values(call.op) or (is_random(call.op) and not subject.capabilities.eager_random_stream):
        return
    check_values(wanted, got, _exact(call), what=_description(call))


def _exact(call: OperatorCall) -> Any:
    """The results in double precision; nothing where the operator has none."""
    if is_random(call.op):
        return None
    try:
        return call.on_cpu(precise)
    except Exception:  # noqa: BLE001 - an operator without double precision has no such excuse
        return None


def _description(call: OperatorCall) -> str:
    def told(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        return x

    args, kwargs = pytree.tree_map(told, (call.args, call.kwargs))
    inner = [str(a) for a in args] + [f"{k}={v}" for k, v in kwargs.items()]
    return f"{call.op}({', '.join(inner)})".replace("'", "")
