"""``torchport.capture``: a step that is traced until two traces agree, and replayed from then on."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch.utils import _pytree as pytree

from torchport import metrics
from torchport.backend import SyncCause
from torchport.config import settings
from torchport.lazy import active
from torchport.lazy.capture.guards import Guards, same_hyperparameters, surroundings
from torchport.lazy.capture.hyperparameters import explain
from torchport.lazy.capture.program import NumberSource, StepProgram
from torchport.lazy.capture.reach import spaces_of, tensors_of
from torchport.lazy.capture.record import GradientOf, Held, Kept, Recorder, Sink, StepRecord, replaced_tensor
from torchport.lazy.source import user_location
from torchport.lazy.sync import launch
from torchport.lazy.trace import LOCK
from torchport.runtime.events import EventKind, record_event

P = ParamSpec("P")
R = TypeVar("R")

_TRACES = metrics.counter("TraceStep")
_MOST_ARGUMENT_KINDS = 64
_PATIENCE = 3
"""So many differing runs in a row are told of; fewer are a program that begins."""


class _Kind:
    """What is known for one kind of arguments, and one pattern of gradients that are there.

    Attributes:
        calls: how often the step was called so.
        record: the last run; ``None`` when there is none that the next one may be compared with.
        program: how it is replayed; ``None`` while it is traced.
        free: hyperparameters that were seen to change, and that the program follows.
        differences: how many runs in a row were not as the one before.
        settling: whether a hyperparameter was changed since the last run.
    """

    __slots__ = ("calls", "differences", "free", "program", "record", "settling")

    def __init__(self) -> None:
        self.calls = 0
        self.record: StepRecord | None = None
        self.program: StepProgram | None = None
        self.free: frozenset[str] = frozenset()
        self.settling = False
        self.differences = 0


class CapturedStep(Generic[P, R]):
    """A step that is traced, and when two traces agree, replayed: see :func:`capture`.

    Attributes:
        verify_every: a replayed step is traced again, and compared, at every so many calls, and at calls 4, 8, 16, ….
    """

    def __init__(self, function: Callable[P, R], verify_every: int) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.verify_every = verify_every
        self._kinds: dict[Hashable, _Kind] = {}
        self._parameters: list[torch.Tensor] = []
        self._warned: set[str] = set()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The step: what the function returns, and everything that it changes."""
        if not settings.capture or active.recorder is not None or active.host_mode is not None:
            return self._function(*args, **kwargs)
        leaves: Sequence[Any]
        spec: Any
        if not kwargs and all(type(a) is torch.Tensor for a in args):
            leaves, spec = args, len(args)
        else:
            leaves, spec = pytree.tree_flatten((args, kwargs))
        pattern = tuple([p.grad is None for p in self._parameters])
        key = (spec, pattern, *surroundings(), *map(_leaf_key, leaves))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MOST_ARGUMENT_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind()
        kind.calls += 1
        program = kind.program
        if program is not None and not self._is_due(kind.calls):
            reason = program.guards.failed() or program.missing()
            if not reason:
                return program.replay(leaves)  # type: ignore[no-any-return]
            record_event(EventKind.CAPTURE, f"{self._name} is traced again: {reason}", user_location())
            kind.program = None
            if program.guards.only_hyperparameters_changed() and not program.missing():
                kind.settling = True
            else:
                kind.record = None
        result: R = self._trace(kind, leaves, args, kwargs)
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method that is captured has a program for each object."""
        if instance is None:
            return self
        name = f"_captured_{id(self)}"
        bound = vars(instance).get(name)
        if bound is None:
            bound = CapturedStep(self._function.__get__(instance, owner), self.verify_every)
            vars(instance)[name] = bound
        return bound

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    def _is_due(self, calls: int) -> bool:
        return calls % self.verify_every == 0 or (calls >= 4 and calls & (calls - 1) == 0)

    # -- tracing --------------------------------------------------------------------------------------------------

    def _trace(self, kind: _Kind, leaves: Sequence[Any], args: Any, kwargs: Any) -> Any:
        location = user_location()
        with LOCK:
            if active.trace.operations:
                launch(SyncCause.BARRIER, location, own=True)
            others = bool(active.trace.operations)
        if others:
            return self._function(*args, **kwargs)  # another thread is in the middle of a step
        _TRACES.value += 1
        tensors = [t for _, value in spaces_of(self._function) for t in tensors_of(value)]
        recorder = Recorder(leaves, _leaves_of_autograd([*tensors, *self._parameters]), tensors)
        before, kind.record = kind.record, None
        with recorder.watching():
            result = self._function(*args, **kwargs)
        with LOCK:
            record = recorder.finish(result, location)
            kind.record = record
            self._settle(kind, before, record)
            self._parameters = _leaves_of_autograd([*self._parameters, *record.tensors])
        return result

    def _settle(self, kind: _Kind, before: StepRecord | None, record: StepRecord) -> None:
        """Decides whether the step is replayed from now on."""
        verified, kind.program = kind.program, None
        refusal = record.refusal
        numbers: list[NumberSource] = []
        if not refusal and before is not None and not before.refusal:
            difference = _difference(before, record)
            if difference:
                kind.differences += 1
                if verified is not None:
                    refusal = f"it is not what was replayed; what differs: {difference}"
                elif kind.differences < _PATIENCE:
                    return  # a first step that makes an optimizer's state, say: the next trace tells
                else:
                    refusal = f"it is another one each time; what differs: {difference}"
            else:
                numbers, refusal = _sources_of_numbers(before, record)
                if refusal and kind.settling:
                    return  # another hyperparameter than those that are followed: the next trace tells
        kind.settling = False
        if refusal:
            self._refuse(kind, refusal)
            return
        if before is None or before.refusal:
            return
        kind.differences = 0
        kind.free |= same_hyperparameters(before.optimizers, record.optimizers)
        if verified is not None:
            numbers = [
                old if isinstance(new, float) and not isinstance(old, float) else new
                for old, new in zip(verified.numbers, numbers, strict=True)
            ]
        guards = Guards(record, self._function, kind.free)
        kind.program = StepProgram(record, numbers, guards, user_location())

    def _refuse(self, kind: _Kind, refusal: str) -> None:
        record_event(EventKind.CAPTURE, f"{self._name} is traced at each call: {refusal}", user_location())
        what = refusal.partition(" is given a number")[0]  # the numbers are others at each call
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(
                f"torchport.capture: {self._name} is traced again at each call, because {refusal}",
                UserWarning,
                stacklevel=5,
            )


def _leaves_of_autograd(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those of the tensors that backward() gives a gradient, each once."""
    return list({id(t): t for t in tensors if t.is_leaf and t.requires_grad}.values())


def _leaf_key(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.dtype, leaf.device, leaf.requires_grad)
    if isinstance(leaf, (bool, int, float, complex, str, type(None))):
        return (type(leaf), repr(leaf))
    return id(leaf)


def _difference(a: StepRecord, b: StepRecord) -> str:
    """What two runs differ in besides numbers; empty when they agree."""
    if a.compiled is not b.compiled:
        return "its operations, or the shapes that they work on"
    for i, (x, y) in enumerate(zip(a.sources, b.sources, strict=True)):
        if type(x) is type(y) is Held and x != y:
            return replaced_tensor(b.compiled.computation.graph.parameters[i].value().shape)  # type: ignore[union-attr]
        if type(x) is not type(y) or x != y:
            return f"where input {i} of its graph comes from"
    if a.out_spec != b.out_spec:
        return "how its result is nested"
    for x, y in zip(a.outputs, b.outputs, strict=True):
        same = x.value is y.value or _plainly_equal(x.value, y.value) if type(x) is type(y) is Kept else x == y
        if not same:
            return f"a part of its result that Python computes: {x} and {y}"
    if [_identity(s) for sinks in a.sinks for s in sinks] != [_identity(s) for sinks in b.sinks for s in sinks]:
        return "what its results are written to"
    return ""


def _identity(sink: Sink) -> Any:
    """What a sink is, for a comparison of runs: tensors that a step makes are others in each."""
    return (sink.parameter, sink.made) if isinstance(sink, GradientOf) else "a tensor"


def _plainly_equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and isinstance(a, (bool, int, float, str, type(None))) and a == b


def _sources_of_numbers(before: StepRecord, now: StepRecord) -> tuple[list[NumberSource], str]:
    """Where the numbers of a program come from; and the first that differs for no reason that is known."""
    sources: list[NumberSource] = []
    for a, b, (operator, line) in zip(before.numbers, now.numbers, now.number_lines, strict=True):
        if type(a) is type(b) and repr(a) == repr(b):
            sources.append(b)
            continue
        source = explain(b, now.optimizers, a, before.optimizers)
        if source is None:
            return [], (
                f"{operator}{f' at {line}' if line is not None else ''} is given a number that Python computes anew "
                f"({a!r}, then {b!r}); give it as a tensor on the device"
            )
        sources.append(source)
    return sources, ""


@overload
def capture(function: Callable[P, R], *, verify_every: int = ...) -> CapturedStep[P, R]: ...


@overload
def capture(function: None = None, *, verify_every: int = ...) -> Callable[[Callable[P, R]], CapturedStep[P, R]]: ...


def capture(function: Callable[P, R] | None = None, *, verify_every: int = 1000) -> Any:
    """A step that is replayed without tracing, once two traces of it agree.

    Parameters, buffers, gradients, an optimizer's state and random numbers change as if the Python code had run, and
    tensors that are returned are new ones each time. What else Python does in the step (printing, appending to a list)
    happens only when it is traced. A step that reads a value, or computes with numbers that change for no reason that
    is known, is never replayed: one warning names the line.

    Args:
        function: the step; or left out, as in ``@torchport.capture(verify_every=100)``.
        verify_every: at every so many calls, and at calls 4, 8, 16, …, it is traced again and compared.

    Example:
        >>> import torch, torchport
        >>> w = torch.ones(2, device="port", requires_grad=True)
        >>> optimizer = torch.optim.SGD([w], lr=0.1)
        >>> @torchport.capture
        ... def step(x):
        ...     optimizer.zero_grad()
        ...     loss = (w * x).sum()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        >>> [round(step(torch.ones(2, device="port")).item(), 3) for _ in range(4)]
        [2.0, 1.8, 1.6, 1.4]

    Raises:
        ValueError: ``verify_every`` is less than 2.
    """
    if verify_every < 2:
        raise ValueError(f"capture(verify_every={verify_every}): at least 2: a step is traced twice first")
    if function is None:
        return lambda f: CapturedStep(f, verify_every)
    return CapturedStep(function, verify_every)
