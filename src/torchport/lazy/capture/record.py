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

from torchport.backend import BackendData, LazyTensor, Shape, SyncCause, Value
from torchport.ir.location import Location
from torchport.lazy import active
from torchport.lazy.capture.hyperparameters import OptimizerState, read_optimizer
from torchport.lazy.capture.reach import lazy_or_none, tensors_of
from torchport.lazy.compilation import CompiledTrace
from torchport.lazy.source import user_location
from torchport.lazy.sync import Launched, launch
from torchport.lazy.tensor import next_unique_id

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


@dataclass(frozen=True, slots=True, eq=False)
class GradientOf:
    """The gradient of a parameter, whichever tensor that is; as a sink, also one that the step makes.

    Attributes:
        made: whether the step makes the tensor, rather than write to the one there is.
    """

    parameter: torch.Tensor
    made: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GradientOf) and self.parameter is other.parameter and self.made == other.made

    def __hash__(self) -> int:
        return hash((id(self.parameter), self.made))


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


Source = Argument | HostArgument | Held | GradientOf | Uploaded
Sink = weakref.ref[LazyTensor] | GradientOf


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
        sinks: for each result where it goes to, besides the step's own result.
        tensors: those that it reads or writes.
        cleared: parameters whose gradient is ``None`` at its end.
        outputs: the leaves of the result, with ``out_spec``.
        modules, optimizers: what took part.
        refusal: why it cannot be replayed, with the line; empty when it can.
    """

    compiled: CompiledTrace | None = None
    sources: list[Source] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    number_lines: list[tuple[str, Location]] = field(default_factory=list)
    sinks: list[list[Sink]] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    cleared: list[torch.Tensor] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    out_spec: pytree.TreeSpec | None = None
    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[OptimizerState] = field(default_factory=list)
    refusal: str = ""


class Recorder:
    """Watches a run. The lazy device tells it of reads, launches and uploads while it is ``active.recorder``.

    Args:
        leaves: the flat arguments.
        parameters: leaf tensors that may get gradients, as far as they are known before the run.
        tensors: other tensors that the step may use.
    """

    def __init__(
        self, leaves: Sequence[Any], parameters: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> None:
        self.thread = get_ident()
        self._leaves = leaves
        self._tensors = [*tensors, *parameters, *(x for x in leaves if isinstance(x, torch.Tensor))]
        self._first_id = next_unique_id()
        self._gradients = {id(lazy): (p, lazy) for p in parameters if (lazy := lazy_or_none(p.grad)) is not None}
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
        trace = active.trace
        leaves, nodes = list(trace.leaves), trace.nodes
        known = self._known_tensors()
        holders = self._holders(leaves, known)
        launched = launch(SyncCause.BARRIER, location, own=True)
        flat, record.out_spec = pytree.tree_flatten(result)
        record.optimizers = [s.after() for s in self._optimizers.values()]
        record.refusal = self.refusal
        if launched is None or self.refusal:
            record.refusal = record.refusal or "nothing was traced"
            return record
        record.compiled = launched.compiled
        record.sources = [self._source(leaves[p], holders[p], record) for p in launched.compiled.parameters]
        for place in launched.compiled.numbers:
            if isinstance(place, tuple):
                node = nodes[place[0]]
                record.numbers.append(node.numbers[place[1]])
                record.number_lines.append((node.call.name, node.location))
        known |= self._known_tensors()  # an optimizer's state, made in this step
        self._place_results(flat, known, launched, record)
        for state in record.optimizers:
            if state.changed_inside:
                record.refusal = f"{state.changed_inside} is changed inside the step; change it outside"
        return record

    def _known_tensors(self) -> dict[int, tuple[torch.Tensor, LazyTensor]]:
        """The tensors that the step may have used, by id, with what stands behind each."""
        used = [s.optimizer for s in self._optimizers.values()]
        found = [*self._tensors, *tensors_of([*self._modules.values(), *used])]
        return {id(t): (t, lazy) for t in found if (lazy := lazy_or_none(t)) is not None}

    def _holders(
        self, leaves: Sequence[Value], known: dict[int, tuple[torch.Tensor, LazyTensor]]
    ) -> list[list[LazyTensor]]:
        """For each leaf the lazy tensors that it is the contents of, or was before the step."""
        by_node: dict[int, list[LazyTensor]] = {}
        gradients = [lazy for _, lazy in self._gradients.values()]
        self._note_contents([*(lazy for _, lazy in known.values()), *gradients], by_node)
        if any(id(leaf.node) not in by_node and id(leaf.node) not in self._uploads for leaf in leaves):
            self._note_contents([o for o in gc.get_objects() if type(o) is LazyTensor], by_node)
        return [by_node.get(id(leaf.node), []) for leaf in leaves]

    @staticmethod
    def _note_contents(lazies: Sequence[LazyTensor], by_node: dict[int, list[LazyTensor]]) -> None:
        for lazy in lazies:
            for value in (lazy.value, lazy.previous):
                if value is not None and value.node.is_device_data:
                    found = by_node.setdefault(id(value.node), [])
                    if lazy not in found:
                        found.append(lazy)

    def _source(self, leaf: Value, holders: list[LazyTensor], record: StepRecord) -> Source:
        upload = self._uploads.get(id(leaf.node))
        if upload is not None:
            return self._upload(upload[0], leaf)
        holders = [h for h in holders if h.unique_id < self._first_id]
        if len(holders) == 1:
            (holder,) = holders
            for i, given in enumerate(self._leaves):
                if lazy_or_none(given) is holder:
                    return Argument(i)
            parameter = self._gradients.get(id(holder))
            return GradientOf(parameter[0]) if parameter is not None else Held(weakref.ref(holder))
        if holders:
            problem = f"two tensors that it may read share their contents, {leaf.shape!r}"
        else:
            problem = replaced_tensor(leaf.shape)
        record.refusal = record.refusal or problem
        return Uploaded(torch.empty(0), leaf.node.data)

    def _upload(self, tensor: torch.Tensor, leaf: Value) -> Source:
        for i, given in enumerate(self._leaves):
            if isinstance(given, torch.Tensor) and given.device.type == "cpu" and _same_memory(given, tensor):
                return HostArgument(i, tensor.dtype)
        data: BackendData = leaf.node.data
        return Uploaded(tensor.detach().clone(), data)

    def _place_results(
        self,
        flat: list[Any],
        known: dict[int, tuple[torch.Tensor, LazyTensor]],
        launched: Launched,
        record: StepRecord,
    ) -> None:
        result_of = {id(t): i for i, tensors in enumerate(launched.holders) for t in tensors}
        returned: set[int] = set()
        for i, leaf in enumerate(flat):
            if isinstance(leaf, torch.Tensor):
                record.outputs.append(self._output(i, leaf, result_of, returned, record))
            else:
                record.outputs.append(Kept(leaf))
        parameters = [t for t, _ in known.values() if t.is_leaf and t.requires_grad]
        gradients = {id(lazy): p for p in parameters if (lazy := lazy_or_none(p.grad)) is not None}
        record.cleared = [p for p in parameters if p.grad is None]
        read = {id(s.tensor()) for s in record.sources if isinstance(s, Held)}
        written: dict[int, LazyTensor] = {}
        for tensors in launched.holders:
            sinks: list[Sink] = []
            for lazy in tensors:
                parameter = gradients.get(id(lazy))
                if parameter is not None:
                    sinks.append(GradientOf(parameter, made=lazy.unique_id >= self._first_id))
                elif id(lazy) not in returned:
                    sinks.append(weakref.ref(lazy))
                    if lazy.unique_id < self._first_id:
                        written[id(lazy)] = lazy
            record.sinks.append(sinks)
        missing = written.keys() - {id(lazy) for _, lazy in known.values()}
        if missing:
            known |= {id(t): (t, lazy) for t, lazy in _live_tensors() if id(lazy) in missing}
        record.tensors = [t for t, lazy in known.values() if id(lazy) in written or id(lazy) in read]

    def _output(
        self, place: int, leaf: torch.Tensor, result_of: dict[int, int], returned: set[int], record: StepRecord
    ) -> Any:
        for i, given in enumerate(self._leaves):
            if given is leaf:
                return Argument(i)
        lazy = lazy_or_none(leaf)
        problem = ""
        if lazy is None:
            problem = f"result {place} is a tensor on {leaf.device}, which is made in Python"
        elif lazy.unique_id < self._first_id:
            return Kept(leaf)
        elif id(lazy) not in result_of:
            problem = f"result {place} was not computed in the step"
        elif leaf.grad_fn is not None and leaf.grad_fn not in self._roots:
            problem = (
                f"result {place} requires grad, and backward() was not called in the step; call it inside, or return "
                "the tensor detached"
            )
        if problem:
            record.refusal = record.refusal or problem
            return Kept(None)
        assert lazy is not None
        returned.add(id(lazy))
        shape = lazy.shape
        view = (tuple(leaf.shape), leaf.stride(), int(leaf.storage_offset()), leaf.dtype)
        whole = view == (shape.sizes, shape.strides, 0, shape.dtype)
        return Returned(result_of[id(lazy)], shape, None if whole else view)


def replaced_tensor(shape: Shape) -> str:
    """Why a step is not replayed that carries a state from call to call in new tensors."""
    return f"it reads {shape!r} from a tensor that is replaced by another at each call; write into one tensor instead"


def _live_tensors() -> list[tuple[torch.Tensor, LazyTensor]]:
    """All tensors on the device, which nothing lists: those that the step reached by ways that are not looked at."""
    return [
        (found, lazy)
        for found in gc.get_objects()
        if issubclass(type(found), torch.Tensor) and (lazy := lazy_or_none(found)) is not None
    ]


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype is b.dtype
