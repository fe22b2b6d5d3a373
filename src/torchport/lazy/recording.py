"""Recording a call: from the arguments of a kernel to a node on the trace.

This is the path that every operation takes. What does not change from step to step (inferring shapes, building the
call, asking the backend whether it runs it) happens once per distinct call and is found again by its key: the shapes of
the tensors, the types of the numbers, the values of everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchport.backend import LazyTensor, Shape, Value
from torchport.config import settings
from torchport.ir.call import Call, number, operand
from torchport.ir.inference import DynamicOutput, infer
from torchport.ir.node import Node
from torchport.lazy import active
from torchport.lazy.number_ranges import NumberRange
from torchport.lazy.reading import write_unwritten
from torchport.lazy.schema import Kind, Operator, undefaulted
from torchport.lazy.source import user_location
from torchport.lazy.sync import cut
from torchport.lazy.tensor import dense_shape, is_dense, lazy_tensor_of
from torchport.lazy.views import Layout, plan_view

CONSTANT, TENSOR, TENSORS, NUMBER, NUMBERS = Kind.CONSTANT, Kind.TENSOR, Kind.TENSORS, Kind.NUMBER, Kind.NUMBERS
IGNORED, GENERATOR = Kind.IGNORED, Kind.GENERATOR
aten = torch.ops.aten
_NUMBER_TYPES = frozenset({bool, int, float, complex})
_TAKES_CPU_INDICES = frozenset({"index", "index_put", "_unsafe_index", "_unsafe_index_put", "_index_put_impl"})

NO_REASON = "the backend does not support it"
"""What is told of a refusal for which the backend gives no reason."""


class Entry:
    """What is known of a distinct call.

    Attributes:
        call: the interned call; ``None`` when its output sizes depend on values.
        results: the shapes of the new tensors that it makes, one per output.
        bits: the bits that eager leaves set on the results; ``None`` where it leaves none.
        plain: whether the results are dense and without bits, as nearly all are.
        refusal: why the backend does not run it; empty when it does.
        dynamic: the shapes of its outputs when their sizes depend on values.
        left: how eager leaves the tensors given as ``out=``, by name.
        range: which numbers eager takes; ``None`` where the call has none.
    """

    __slots__ = ("bits", "call", "dynamic", "left", "plain", "range", "refusal", "results")

    def __init__(self, call: Call, refusal: str, dynamic: bool) -> None:
        self.call = call
        self.results = call.outputs
        self.plain = all(s is None or is_dense(s) for s in call.outputs)
        self.bits: tuple[tuple[bool, bool], ...] | None = None
        self.refusal = refusal
        self.dynamic = dynamic
        self.left: dict[str, Any] = {}
        self.range: NumberRange | None = None


Arguments = tuple[list[Any], list[Value], list[Any], list[Shape]]
"""A kernel's arguments, sorted: the key of the call, the tensors' values, the numbers, the tensors' shapes."""


def add_value(call: Call, operands: tuple[Value, ...], numbers: tuple[Any, ...] = ()) -> Value:
    """Appends a node without a line of its own (part of a view's reading or writing); returns its first value."""
    return Value(active.trace.add(active.builder(), call, operands, numbers))


def read_view(lazy: LazyTensor, layout: Layout) -> tuple[Value, Shape]:
    """The value of a view of a storage's contents, and its shape."""
    views = lazy.views
    if views is None or views[0] != active.trace.serial:
        if lazy.value is None:
            write_unwritten(lazy)
        views = lazy.views = (active.trace.serial, {})
    found: tuple[Value, Shape] | None = views[1].get(layout)
    # What was launched out of a trace that goes on, because it belonged to another thread, is read again.
    if found is None or (found[0].node.trace != views[0] and not found[0].node.is_device_data):
        assert lazy.value is not None
        plan = plan_view(lazy.shape, layout)
        found = views[1][layout] = (plan.read(add_value, lazy.value), plan.shape)
    return found


def read(tensor: torch.Tensor, as_operand: bool = False) -> tuple[Value, Shape]:
    """The current value of a tensor on the device, and its shape as the tensor has it.

    Args:
        tensor: the tensor.
        as_operand: the value goes to an operator and nowhere else, so that a conjugation may be left to that.
    """
    lazy: LazyTensor = tensor.untyped_storage()._torchport  # type: ignore[attr-defined]
    shape = lazy.shape
    if (
        tensor.shape == shape.sizes
        and tensor.stride() == shape.strides
        and tensor.dtype is shape.dtype
        and not tensor.storage_offset()
    ):
        if lazy.value is None:
            write_unwritten(lazy)
        value: Value = lazy.value  # type: ignore[assignment]
    else:
        value, shape = read_view(lazy, layout_of(tensor))
    if tensor.is_conj() or tensor.is_neg():
        value = with_bits(tensor, value, as_operand)
    return value, shape


def layout_of(tensor: torch.Tensor) -> Layout:
    """Where a tensor's elements are in its storage."""
    return (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)


def with_bits(tensor: torch.Tensor, value: Value, as_operand: bool = False) -> Value:
    """The value conjugated and negated as the tensor's bits say; PyTorch leaves them set for some operators.

    Those have kernels (of matrix products, for example) that take such an operand as it is. For them it is a view, and
    eager's rounding is theirs.
    """
    conjugate, negate = (aten._conj, aten._neg_view) if as_operand else (aten.conj_physical, aten.neg)
    for is_set, op in ((tensor.is_conj(), conjugate.default), (tensor.is_neg(), negate.default)):
        if is_set:
            shape = value.shape
            args = (operand(0),)
            value = add_value(Call(op, args, (), (shape,), infer(op, args, {}, (shape,), [])), (value,))
    return value


def write(tensor: torch.Tensor, value: Value) -> None:
    """Gives a tensor on the device a new value of its sizes and dtype; all views of its storage see it."""
    lazy = lazy_tensor_of(tensor)
    layout = layout_of(tensor)
    shape = lazy.shape
    if layout == (shape.sizes, shape.strides, 0, shape.dtype):
        active.trace.write(lazy, value)
        return
    if 0 in layout[0]:
        return
    plan = plan_view(shape, layout)
    if plan.overwrites:
        base = lazy.value if lazy.value is not None else value
    else:
        if lazy.value is None:
            write_unwritten(lazy)
        assert lazy.value is not None
        base = lazy.value
    active.trace.write(lazy, plan.write(add_value, base, value))


def collect(info: Operator, args: Sequence[Any], kwargs: dict[str, Any], skip: frozenset[str]) -> Arguments:
    """Reads the arguments: tensors become values, numbers are set apart, the rest goes into the key.

    Args:
        info: the operator.
        args: positional arguments, without trailing defaults.
        kwargs: keyword arguments that differ from their defaults.
        skip: names of ``out=`` arguments, which are no inputs.
    """
    # One function for the common kinds, with nothing called but the tensors' own methods: every operation passes here.
    key: list[Any] = [active.generation]
    operands: list[Value] = []
    numbers: list[Any] = []
    shapes: list[Shape] = []
    for kind, a in zip(info.kinds, args, strict=False):
        if kind == TENSOR:
            if a is None:
                key.append(None)
            elif type(a) in _NUMBER_TYPES:
                key.append(type(a))
                numbers.append(a)
            else:
                try:
                    lazy = a.untyped_storage()._torchport
                except (AttributeError, NotImplementedError):
                    value, shape = _foreign(info, a, not operands)
                else:
                    shape = lazy.shape
                    if (
                        a.shape == shape.sizes
                        and a.stride() == shape.strides
                        and a.dtype is shape.dtype
                        and not a.storage_offset()
                        and lazy.value is not None
                        and not shape.is_complex
                    ):
                        value = lazy.value
                    else:
                        value, shape = read(a, as_operand=True)
                        if a.is_conj() or a.is_neg():
                            key.append((a.is_conj(), a.is_neg()))
                operands.append(value)
                shapes.append(shape)
                key.append(shape)
        elif kind == CONSTANT:
            key.append(a if type(a) is int else tuple(a) if type(a) is list else _static(a))
        elif kind == NUMBER:
            key.append(type(a))
            if a is not None:
                numbers.append(a)
        else:
            _collect(info, key, operands, numbers, shapes, kind, a)
    if kwargs:
        for name in sorted(kwargs):
            if name not in skip:
                kind = info.keyword_kinds[name]
                if kind == IGNORED:
                    if name == "device":
                        active.check_device(kwargs[name])
                else:
                    key.append(name)
                    _collect(info, key, operands, numbers, shapes, kind, kwargs[name])
    return key, operands, numbers, shapes


def _collect(
    info: Operator,
    key: list[Any],
    operands: list[Value],
    numbers: list[Any],
    shapes: list[Shape],
    kind: int,
    a: Any,
) -> None:
    """The same for one argument of any kind."""
    if kind == TENSORS:
        if a is None:
            key.append(None)
            return
        key.append(len(a))
        for t in a:
            _collect(info, key, operands, numbers, shapes, TENSOR, t)
    elif kind == NUMBERS:
        key.append(tuple(map(type, a)))
        numbers.extend(a)
    elif kind == NUMBER or (type(a) in _NUMBER_TYPES and kind == TENSOR):
        key.append(type(a))
        if a is not None:
            numbers.append(a)
    elif kind == TENSOR:
        if a is None:
            key.append(None)
            return
        try:
            value, shape = read(a, as_operand=True)
        except (AttributeError, NotImplementedError):
            value, shape = _foreign(info, a, not operands)
        operands.append(value)
        shapes.append(shape)
        key.append(shape)
        if a.is_conj() or a.is_neg():
            key.append((a.is_conj(), a.is_neg()))
    elif kind == CONSTANT:
        key.append(_static(a))


def _foreign(info: Operator, tensor: torch.Tensor, is_first: bool) -> tuple[Value, Shape]:
    """A tensor of another device among ours: allowed where eager PyTorch allows it, and uploaded.

    Raises:
        RuntimeError: it is not allowed; the text is that of eager PyTorch.
    """
    if tensor.device.type == "cpu" and tensor.layout is torch.strided:
        takes_indices = info.counter_name.rstrip("_") in _TAKES_CPU_INDICES
        if takes_indices and is_first:
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        if tensor.dim() == 0 or takes_indices:
            return upload(tensor)
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{settings.device_name}:0 and {tensor.device}!"
    )


def upload(tensor: torch.Tensor, shape: Shape | None = None) -> tuple[Value, Shape]:
    """A leaf with a copy of a host tensor."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if shape is None:
        shape = dense_shape(Shape(tensor.dtype, tuple(tensor.shape), tensor.stride()))
    data = active.backend().make_computation_data_from_tensor(tensor, shape, active.backend_device())
    value = Value(active.builder().make_device_data(data))
    if active.recorder is not None:
        active.recorder.uploaded(value, tensor)
    return value, shape


def _static(a: Any) -> Any:
    kind = type(a)
    if kind is list:
        return tuple(a)
    if kind is float:
        return (float, a.hex())
    if kind is bool:
        return (bool, a)
    return a


def build_entry(
    info: Operator, op: Any, args: Sequence[Any], kwargs: dict[str, Any], found: Arguments, skip: frozenset[str]
) -> Entry:
    """Infers the shapes of a call that was not seen before.

    Raises:
        Exception: what eager PyTorch raises for such arguments.
    """
    _, operands, numbers, shapes = found
    counts = [0, 0]
    bits: list[tuple[bool, bool]] = []

    def template(kind: int, a: Any) -> Any:
        if kind in (TENSORS, NUMBERS):
            element = TENSOR if kind == TENSORS else NUMBER
            return None if a is None else tuple(template(element, t) for t in a)
        if a is None:
            return None
        if (kind == TENSOR and type(a) in _NUMBER_TYPES) or kind == NUMBER:
            counts[1] += 1
            return number(counts[1] - 1, type(a))
        if kind == TENSOR:
            counts[0] += 1
            bits.append((a.is_conj(), a.is_neg()) if a.device.type == active.device_type else (False, False))
            return operand(counts[0] - 1)
        return tuple(template(CONSTANT, x) for x in a) if isinstance(a, (list, tuple)) else a

    positional = tuple(template(k, a) for k, a in zip(info.kinds, args, strict=False))
    keywords = {}
    required = {a.name for a in info.op._schema.arguments if a.kwarg_only and not a.has_default_value()}
    for name in sorted(kwargs):
        kind = info.keyword_kinds[name]
        given = kind not in (IGNORED, GENERATOR) and kwargs[name] is not None
        if name not in skip and (given or name in required):
            keywords[name] = template(kind, kwargs[name])
    for name in undefaulted(op):
        keywords.setdefault(name)
    if keywords.get("layout") is torch.strided:
        del keywords["layout"]
    assert counts == [len(operands), len(numbers)], f"{op}: the arguments were sorted in two ways"
    inputs = tuple(shapes)
    dynamic = False
    try:
        outputs = infer(op, positional, keywords, inputs, numbers, tuple(bits))
    except DynamicOutput as reason:
        outputs, dynamic = reason.outputs, True
    call = Call(op, positional, tuple(sorted(keywords.items())), inputs, outputs)
    support = active.backend().supports(Node(call, tuple(operands), tuple(numbers)))
    refusal = "" if support else support.reason or NO_REASON
    if call.is_random and not active.backend().capabilities.random:
        refusal = "the backend draws no random numbers"
    entry = Entry(call, refusal, dynamic)
    if numbers:
        entry.range = NumberRange(call)
    return entry


def record(call: Call, operands: list[Value], numbers: list[Any]) -> Node:
    """Appends the node of a call to the trace; a trace that has grown past its bound is marked to be cut."""
    location = user_location() if settings.source_lines else None
    trace = active.trace
    node = trace.add(active.builder(), call, tuple(operands), tuple(numbers), location)
    if trace.operations >= settings.max_pending_nodes:
        active.cut_due = True
    return node


def cut_if_due() -> None:
    """Launches a trace that has grown past its bound; called when the results of an operation have their tensors."""
    if active.cut_due:
        active.cut_due = False
        cut(user_location())
