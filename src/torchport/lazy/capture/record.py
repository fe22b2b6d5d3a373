"""One run of a step, watched: what it read and wrote, which numbers it used, and why it cannot be replayed."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from torchport.backend import BackendData, LazyTensor, SyncCause, Value
from torchport.ir.location import Location
from torchport.lazy import active
from torchport.lazy.capture.hyperparameters import OptimizerState, read_optimizer
from torchport.lazy.compilation import CompiledTrace
from torchport.lazy.source import user_location
from torchport.lazy.sync import Launched, launch
from torchport.lazy.tensor import lazy_tensor_of, next_unique_id

_WORDS = {
    SyncCause.READ: "a value is read",
    SyncCause.CUT: "the graph grew past settings.max_pending_nodes",
    SyncCause.EAGER: "an operator that cannot be deferred runs",
    SyncCause.BARRIER: "a barrier is reached in another thread",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An input that is a tensor among the arguments, on the device."""

    leaf: int


@dataclass(frozen=True, slots=True)
class HostArgument:
    """An input that is a CPU tensor among the arguments, copied to the device by the step."""

    leaf: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Held:
    """An input that is the contents of a tensor that lives on: a parameter, a buffer, an optimizer's state."""

    tensor: weakref.ref[LazyTensor]


@dataclass(frozen=True, slots=True)
class Uploaded:
    """An input that the step copies from the host, always with the same contents."""

    contents: torch.Tensor
    data: BackendData

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uploaded) and (
            self.contents.dtype is other.contents.dtype
            and self.contents.shape == other.contents.shape
            and bool(torch.equal(self.contents.nan_to_num(), other.contents.nan_to_num()))
        )

    __hash__ = None  # type: ignore[assignment]


Source = Argument | HostArgument | Held | Uploaded


@dataclass(frozen=True, slots=True)
class Returned:
    """A tensor of the step's result that is new: which result of the program it shows, and how.

    Attributes:
        result: the number of the result.
        storage: the layout of its storage.
        view: sizes, strides and offset in that, where it is a view; ``None`` where it is the whole.
    """

    result: int
    storage: Any
    view: tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype] | None


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of the step's result that is the same object at each call: a parameter, or no tensor at all."""

    value: Any


@dataclass(slots=True)
class StepRecord:
    """What is known of a run.

    Attributes:
        compiled: the program; ``None`` when nothing was launched.
        sources: where each tensor of the program comes from.
        numbers: the values of its numbers, sizes apart.
        number_lines: the operator and line of each.
        sinks: for each result the lazy tensors that it goes to, besides those that were returned.
        gradients: leaf tensor → its gradient at the end.
        outputs: the leaves of the result, with ``out_spec``.
        modules, optimizers: what took part.
        refusal: why it cannot be replayed, with the line; empty when it can.
    """

    compiled: CompiledTrace | None = None
    sources: list[Source] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    number_lines: list[tuple[str, Location]] = field(default_factory=list)
    sinks: list[list[weakref.ref[LazyTensor]]] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    out_spec: pytree.TreeSpec | None = None
    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[OptimizerState] = field(default_factory=list)
    refusal: str = ""


class Recorder:
    """Watches a run. The lazy device tells it of reads, launches and uploads while it is ``active.recorder``.

    Args:
        leaves: the flat arguments.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.thread = get_ident()
        self._leaves = leaves
        self._first_id = next_unique_id()
        self._uploads: dict[int, tuple[torch.Tensor, Any]] = {}
        self._modules: dict[int, nn.Module] = {}
        self._optimizers: dict[int, OptimizerState] = {}
        self._roots: set[Any] = set()
        self.refusal = ""

    # -- told by the lazy device ----------------------------------------------------------------------------------

    def interrupted(self, cause: SyncCause, location: Location) -> None:
        """The trace is launched in the middle of the step."""
        self.refuse(_WORDS[cause], location)

    def read(self) -> None:
        """A value is read on the host."""
        self.refuse("a value is read", user_location())

    def uploaded(self, value: Value, tensor: torch.Tensor) -> None:
        """A host tensor is copied to the device."""
        self._uploads[id(value.node)] = (tensor, value)

    def backward_from(self, roots: Sequence[torch.Tensor]) -> None:
        """The graph behind these tensors is used up."""
        pending = [t.grad_fn for t in roots if t.grad_fn is not None]
        while pending:
            node = pending.pop()
            if node is not None and node not in self._roots:
                self._roots.add(node)
                pending += [f for f, _ in node.next_functions if f is not None]

    def refuse(self, what: str, location: Location) -> None:
        """Notes the first reason why the step cannot be replayed."""
        if not self.refusal:
            self.refusal = f"{what}{f' at {location}' if location is not None else ''}"

    # -- watching -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside it, modules that are called and optimizers that step are noted."""

        def called(module: nn.Module, args: Any) -> None:
            self._modules[id(module)] = module

        def stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self._optimizers[id(optimizer)] = read_optimizer(optimizer)

        hooks = [register_module_forward_pre_hook(called), register_optimizer_step_pre_hook(stepping)]
        active.recorder = self
        try:
            yield
        finally:
            active.recorder = None
            for hook in hooks:
                hook.remove()

    # -- the record -----------------------------------------------------------------------------------------------

    def finish(self, result: Any, location: Location) -> StepRecord:
        """Launches what the step has traced, and tells all about it. Call it with the trace's lock held."""
        record = StepRecord(modules=list(self._modules.values()))
        owners, tensors = _live()
        held = _holders_of_leaves(owners)
        trace = active.trace
        leaves, nodes = list(trace.leaves), trace.nodes
        launched = launch(SyncCause.BARRIER, location, own=True)
        flat, record.out_spec = pytree.tree_flatten(result)
        record.optimizers = [s.after() for s in self._optimizers.values()]
        record.refusal = self.refusal
        if launched is None or self.refusal:
            record.refusal = record.refusal or "nothing was traced"
            return record
        record.compiled = launched.compiled
        arguments = {id(lazy): i for i, lazy in enumerate(map(_lazy_or_none, self._leaves)) if lazy is not None}
        record.sources = [self._source(leaves[p], held, arguments, record) for p in launched.compiled.parameters]
        for place in launched.compiled.numbers:
            if isinstance(place, tuple):
                node = nodes[place[0]]
                record.numbers.append(node.numbers[place[1]])
                record.number_lines.append((node.call.name, node.location))
        self._place_results(flat, launched, record)
        written = {id(ref()) for refs in record.sinks for ref in refs}
        read = {id(s.tensor()) for s in record.sources if isinstance(s, Held)}
        record.tensors = [t for t, lazy in tensors if id(lazy) in written or id(lazy) in read]
        record.gradients = [
            (t, t.grad) for t in record.tensors if t.requires_grad and t.is_leaf and id(lazy_tensor_of(t)) in read
        ]
        for state in record.optimizers:
            if state.changed_inside:
                record.refusal = f"{state.changed_inside} is changed inside the step; change it outside"
        return record

    def _source(
        self, leaf: Value, held: dict[int, LazyTensor], arguments: dict[int, int], record: StepRecord
    ) -> Source:
        owner = held.get(id(leaf))
        if owner is not None and id(owner) in arguments:
            return Argument(arguments[id(owner)])
        upload = self._uploads.get(id(leaf.node))
        if upload is not None:
            tensor = upload[0]
            for i, given in enumerate(self._leaves):
                if isinstance(given, torch.Tensor) and given.device.type == "cpu" and _same_memory(given, tensor):
                    return HostArgument(i, tensor.dtype)
            data: BackendData = leaf.node.data
            return Uploaded(tensor.detach().clone(), data)
        if owner is None or owner.unique_id >= self._first_id:
            record.refusal = record.refusal or (
                f"it reads {leaf.shape!r} from a tensor that is replaced by another at each call; write into one "
                "tensor instead"
            )
            return Held(weakref.ref(owner) if owner is not None else lambda: None)  # type: ignore[arg-type]
        return Held(weakref.ref(owner))

    def _place_results(self, flat: list[Any], launched: Launched, record: StepRecord) -> None:
        result_of = {id(t): i for i, tensors in enumerate(launched.holders) for t in tensors}
        returned: set[int] = set()
        for i, leaf in enumerate(flat):
            if not isinstance(leaf, torch.Tensor):
                record.outputs.append(Kept(leaf))
                continue
            lazy = _lazy_or_none(leaf)
            same = next((Argument(k) for k, given in enumerate(self._leaves) if given is leaf), None)
            if same is not None:
                record.outputs.append(same)
            elif lazy is None:
                record.refusal = record.refusal or f"result {i} is a tensor on {leaf.device}, which is made in Python"
            elif lazy.unique_id < self._first_id:
                record.outputs.append(Kept(leaf))
            elif id(lazy) not in result_of:
                record.refusal = record.refusal or f"result {i} was computed before the step"
            elif leaf.grad_fn is not None and leaf.grad_fn not in self._roots:
                record.refusal = record.refusal or (
                    f"result {i} requires grad, and backward() was not called in the step; call it inside, or return "
                    "the tensor detached"
                )
            else:
                returned.add(id(lazy))
                shape = lazy.shape
                view = (tuple(leaf.shape), leaf.stride(), int(leaf.storage_offset()), leaf.dtype)
                whole = view == (shape.sizes, shape.strides, 0, shape.dtype)
                record.outputs.append(Returned(result_of[id(lazy)], shape, None if whole else view))
        record.sinks = [[weakref.ref(t) for t in tensors if id(t) not in returned] for tensors in launched.holders]


def _live() -> tuple[list[LazyTensor], list[tuple[torch.Tensor, LazyTensor]]]:
    """All lazy tensors, and all tensors on the device with theirs. Nothing lists them; a recorded run may search."""
    lazies: list[LazyTensor] = []
    tensors: list[tuple[torch.Tensor, LazyTensor]] = []
    for found in gc.get_objects():
        kind = type(found)
        if kind is LazyTensor:
            lazies.append(found)
        elif issubclass(kind, torch.Tensor):
            lazy = _lazy_or_none(found)
            if lazy is not None:
                tensors.append((found, lazy))
    return lazies, tensors


def _lazy_or_none(value: Any) -> LazyTensor | None:
    if not isinstance(value, torch.Tensor) or value.device.type != active.device_type:
        return None
    try:
        return lazy_tensor_of(value)
    except TypeError:
        return None


def _holders_of_leaves(lazies: Sequence[LazyTensor]) -> dict[int, LazyTensor]:
    """The lazy tensor that each value is the contents of, or was before the step, by the value's id."""
    found: dict[int, LazyTensor] = {}
    for lazy in lazies:
        for value in (lazy.value, lazy.previous):
            if value is not None:
                known = found.get(id(value))
                if known is None or lazy.unique_id < known.unique_id:
                    found[id(value)] = lazy
    return found


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype is b.dtype
