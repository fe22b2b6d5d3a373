"""Calls of ATen operators: what PyTorch's OpInfo samples come down to, forward and backward, on the CPU."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torchport.conformance.operators.overloads import has_values, is_random
from torchport.conformance.operators.written import written_calls

SAMPLES_OF_EACH = 4
"""How many samples of an OpInfo are run."""
_KEPT_OF_EACH = 24
_LARGEST = 1 << 14
"""A call with more elements is left out: the values of a small one say as much."""


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCall:
    """A call of an overload, with arguments on the CPU.

    Attributes:
        origin: the name of the OpInfo whose sample led to it; empty where we have written it.
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    origin: str = ""

    def on_cpu(self, precise: Any = None) -> Any:
        """The CPU's results, from copies of the arguments; those that the call writes to are among them."""
        args, kwargs = copied((self.args, self.kwargs))
        if precise is not None:
            args, kwargs = precise((args, kwargs))
        return written(self.op, args, kwargs)


def written(op: OpOverload, args: Any, kwargs: Any) -> Any:
    """The results of a call, and the arguments that it has written to."""
    result = op(*args, **kwargs)
    values = [*args, *(kwargs.get(a.name) for a in op._schema.arguments[len(args) :])]
    targets = [
        value
        for argument, value in zip(op._schema.arguments, values, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return result, targets


def copied(x: Any) -> Any:
    """The pytree with tensors of its own, in the same layout where no element is there twice."""
    return pytree.tree_map(_copied_leaf, x)


def _copied_leaf(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    plain = x.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.preserve_format)


class _Recorder(TorchDispatchMode):
    """Keeps the calls that are made inside of it, a few of each overload."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype
        self.origin = ""
        self.calls: dict[OpOverload, dict[str, OperatorCall]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kept = copied((args, kwargs)) if self._is_wanted(func, args, kwargs) else None
        result = func(*args, **kwargs)
        if kept is not None and self.dtype in _dtypes_of((kept, result)):
            # By what it says of shapes and static arguments: one call of a kind is enough.
            key = f"{self._is_own(func)}{pytree.tree_map(_described, kept)}"
            known = self.calls.setdefault(func, {})
            if len(known) < _KEPT_OF_EACH or self._is_own(func):
                known.setdefault(key, OperatorCall(func, tuple(kept[0]), kept[1], self.origin))
        return result

    def _is_wanted(self, func: Any, args: Any, kwargs: Any) -> bool:
        if not isinstance(func, OpOverload) or func.namespace != "aten":
            return False
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        return all(t.layout is torch.strided for t in tensors) and sum(t.numel() for t in tensors) <= _LARGEST

    def _is_own(self, func: OpOverload) -> bool:
        return func._schema.name.removeprefix("aten::") == self.origin.rpartition(".")[2]


def _described(x: Any) -> Any:
    return f"{x.dtype}{tuple(x.shape)}{x.stride()}" if isinstance(x, torch.Tensor) else x


def _dtypes_of(x: Any) -> set[torch.dtype]:
    leaves = pytree.tree_leaves(x)
    return {t.dtype if isinstance(t, torch.Tensor) else t for t in leaves if isinstance(t, torch.Tensor | torch.dtype)}


@cache
def recorded_calls(dtype: torch.dtype) -> dict[OpOverload, tuple[OperatorCall, ...]]:
    """Calls of every overload with that dtype that OpInfo leads to, those of the operator's own OpInfo first."""
    recorder = _Recorder(dtype)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.enable_grad():
        warnings.simplefilter("ignore")
        # Here: it takes a second, brings a package of its own, and only who tries operators needs it.
        from torch.testing._internal.common_methods_invocations import op_db

        for info in sorted(op_db, key=lambda i: (i.name, i.variant_test_name)):
            if dtype in info.supported_dtypes("cpu"):
                recorder.origin = info.name
                # Not torch.manual_seed, which formats the stack for each kind of device that is not here.
                torch.default_generator.manual_seed(0)
                _run_samples(info, dtype, recorder)
    found = {op: tuple(calls.values()) for op, calls in recorder.calls.items()}
    for op, args, kwargs in written_calls(dtype):
        call = OperatorCall(op, args, kwargs)
        if not found.get(op) and _runs_on_cpu(call):
            found[op] = (*found.get(op, ()), call)
    return {op: tuple(sorted(calls, key=lambda c: not _is_its_own(c))) for op, calls in found.items()}


def _is_its_own(call: OperatorCall) -> bool:
    return call.op._schema.name.removeprefix("aten::") == call.origin.rpartition(".")[2]


def _run_samples(info: Any, dtype: torch.dtype, recorder: _Recorder) -> None:
    differentiable = dtype in info.supported_backward_dtypes("cpu") and info.supports_autograd
    samples = iter(info.sample_inputs_func(info, "cpu", dtype, differentiable))
    for sample in _until_an_error(itertools.islice(samples, SAMPLES_OF_EACH)):
        with recorder:
            for _ in _until_an_error(_forward_and_backward(info, sample)):
                pass


def _forward_and_backward(info: Any, sample: Any) -> Iterator[None]:
    result = info(sample.input, *sample.args, **sample.kwargs)
    yield
    outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves = [t for t in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if _wants_gradient(t)]
    if outputs and leaves:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(t) for t in outputs], allow_unused=True)
    yield


def _wants_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _until_an_error(items: Iterator[Any]) -> Iterator[Any]:
    """The items up to the first that cannot be made: what the CPU refuses is no sample."""
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - a sample that PyTorch's own kernels refuse; the ones before it count
            return
        yield item


def _runs_on_cpu(call: OperatorCall) -> bool:
    try:
        call.on_cpu()
    except Exception:  # noqa: BLE001 - what the CPU refuses is no sample
        return False
    return True


def chosen_calls(op: OpOverload, dtype: torch.dtype, count: int) -> list[OperatorCall]:
    """Up to ``count`` calls of an overload with that dtype which the CPU runs, and runs twice alike."""
    calls = recorded_calls(dtype).get(op, ())
    own = sum(_is_its_own(c) for c in calls) or len(calls)
    # Spread over the calls of its own samples, which go from plain to special.
    step = max(1, own // count)
    order = [*calls[:own:step], *(c for i, c in enumerate(calls) if i >= own or i % step)]
    chosen: list[OperatorCall] = []
    for call in order:
        if len(chosen) == count:
            break
        if _runs_on_cpu(call) and (is_random(op) or not has_values(op) or _repeats(call)):
            chosen.append(call)
    return chosen


def _repeats(call: OperatorCall) -> bool:
    """Whether the CPU gives the same twice: memory that nobody has written may be among the arguments."""
    try:
        torch.testing.assert_close(call.on_cpu(), call.on_cpu(), rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return True
