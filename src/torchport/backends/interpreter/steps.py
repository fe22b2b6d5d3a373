"""From a call of the IR to a step: the function to call, and what to call it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.backends.interpreter.aliasing import declared_aliases, may_alias
from torchport.backends.interpreter.bindings import fastest, reaches
from torchport.backends.interpreter.in_place import twin
from torchport.backends.interpreter.layout import (
    as_strided_in,
    as_strided_scatter_in,
    operands_laid_out,
    reinterpreted,
)
from torchport.backends.interpreter.randomness import (
    cpu_native_dropout,
    fill_overload,
    filler,
    matching_overload,
    on_generator,
    with_generator,
)
from torchport.ir.call import SCALAR, TENSOR_LIST, Call, Number, Operand


class Form(Enum):
    """How a function returns a call's outputs."""

    ONE = "one"
    """The tensor itself."""
    SEQUENCE = "sequence"
    """One item per output."""
    NESTED = "nested"
    """A tuple with lists in it, to be flattened."""


@dataclass(frozen=True, slots=True)
class AsTensor:
    """A number's place where the operator wants a tensor and its binding takes no number."""

    number: Any
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Step:
    """A call, ready to run.

    Attributes:
        function: what is called.
        name: its name in the source text.
        args, kwargs: templates, as in :class:`Call`; also :class:`AsTensor`.
        form: how the outputs come back.
        aliases: for each output, the operands whose memory it may share.
        in_place: a function that takes the same arguments and writes the outputs into the first one; or ``None``.
        writes: how many tensors it writes into: 1, or the length of a ``_foreach`` operator's first list.
        identity: nothing is called: the outputs are these operands.
        is_random: draws from the generator.
    """

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    form: Form = Form.ONE
    aliases: tuple[tuple[int, ...], ...] = ((),)
    in_place: Callable[..., Any] | None = None
    writes: int = 1
    identity: tuple[int, ...] | None = None
    is_random: bool = False

    def run(self, operands: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs, flat. The slow way, for running node by node."""
        if self.identity is not None:
            return tuple(operands[i] for i in self.identity)

        def fill(x: Any) -> Any:
            kind = type(x)
            if kind is Operand:
                return operands[x.index]
            if kind is Number:
                return numbers[x.index]
            if kind is tuple:
                return [fill(y) for y in x]
            if kind is AsTensor:
                return torch.scalar_tensor(fill(x.number), dtype=x.dtype)
            return x

        out = self.function(*[fill(a) for a in self.args], **{k: fill(v) for k, v in self.kwargs})
        return (out,) if self.form is Form.ONE else tuple(out) if self.form is Form.SEQUENCE else flat(out)


def flat(outputs: Any) -> tuple[Any, ...]:
    """A tuple of tensors and lists of tensors as one tuple."""
    found: list[Any] = []
    for item in outputs:
        if isinstance(item, (list, tuple)):
            found += item
        else:
            found.append(item)
    return tuple(found)


_IDENTITIES = frozenset({"aten::alias", "aten::detach", "aten::lift", "aten::lift_fresh"})
_COPIES = frozenset({"aten::_to_copy", "aten::alias_copy", "aten::clone", "aten::contiguous", "aten::detach_copy"})
"""Values never change, so a copy into the same layout is the value itself."""
_RESHAPES = frozenset({"aten::_reshape_alias", "aten::_unsafe_view", "aten::view", "aten::view_copy"})
"""Whether a view is possible depends on the strides at run time, and only the values matter: ``reshape`` always is."""
_STAY_COPIES = frozenset({"aten::_conj_copy", "aten::_neg_view_copy", "aten::expand_copy"})
"""Copies whose view would overlap itself, or put off a conjugation that ``view_as_real`` must not meet."""


def _nothing(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("an identity step is never called")


def lower_call(call: Call, device: torch.device, generator: torch.Generator) -> Step:
    """The step of any call but a device-data leaf.

    Args:
        call: what to run.
        device: where factories make their tensors.
        generator: what random operators draw from.
    """
    if call.op is SCALAR:
        scalar = (("device", device), ("dtype", call.outputs[0].dtype if call.outputs[0] else None))
        return Step(torch.scalar_tensor, "scalar_tensor", call.args, scalar)
    aliases = may_alias(call)
    if call.op is TENSOR_LIST:
        return Step(_nothing, "tensor_list", call.args, aliases=aliases, identity=tuple(range(len(call.outputs))))
    op = call.op
    assert isinstance(op, OpOverload)
    if op is torch.ops.aten._efficientzerotensor.default:
        # That one has no memory, and not every kernel knows.
        op = torch.ops.aten.zeros.default
    name = op._name
    short = op._schema.name.partition("::")[2]
    if name in _IDENTITIES or (name in _COPIES and _is_same(call)):
        return Step(_nothing, short, call.args, aliases=((0,),), identity=(0,))
    if name in _RESHAPES:
        return Step(torch.reshape, "reshape", call.args[:2], aliases=((0,),))
    if name == "aten::view.dtype":
        return Step(reinterpreted, "reinterpreted", call.args, aliases=((0,),))
    if name in ("aten::as_strided", "aten::as_strided_copy"):
        return Step(as_strided_in(call.inputs[0]), "as_strided", call.args, call.kwargs, aliases=((0,),))
    if name == "aten::as_strided_scatter":
        return Step(as_strided_scatter_in(call.inputs[0]), short, call.args, call.kwargs)
    view = _view_behind(op) if name.endswith("_copy") or "_copy." in name else None
    if view is not None:
        as_view = Call(view, call.args, call.kwargs, call.inputs, call.outputs)
        op, aliases = view, may_alias(as_view)
        short = op._schema.name.partition("::")[2]
    step = Step(_nothing, short, call.args, _with_factory_arguments(op, call, device), _form(op, call), aliases)
    if call.is_random:
        return _random_step(step, op, call, device, generator)
    return _bound_step(step, op, call)


def _bound_step(step: Step, op: OpOverload, call: Call) -> Step:
    """The step with the fastest functions of an overload and of its in-place twin."""
    function, step = _bind(step, op, call)
    other = twin(op, call.inputs[0].dtype if call.inputs else None)
    in_place = None if other is None else _bind(step, other, call)[0]
    if in_place is not None and step.form is Form.SEQUENCE:
        return replace(step, function=function, in_place=_returning_list(in_place), writes=len(call.outputs))
    return replace(step, function=function, in_place=in_place)


def _returning_list(function: Callable[..., Any]) -> Callable[..., Any]:
    """An in-place ``_foreach`` function, made to return the list that it wrote into."""

    def written(tensors: list[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        function(tensors, *args, **kwargs)
        return tensors

    return written


def _random_step(step: Step, op: OpOverload, call: Call, device: torch.device, generator: torch.Generator) -> Step:
    step = replace(step, is_random=True)
    if op._name == "aten::native_dropout" and device.type == "cpu":
        return replace(step, function=operands_laid_out(cpu_native_dropout(generator), call))
    drawing = with_generator(op)
    if drawing is None:
        return replace(step, function=operands_laid_out(on_generator(op._op, generator), call))
    # After a positional generator slot nothing follows, so a keyword reaches it wherever the schema has it.
    step = replace(
        step,
        args=_without_generator_slot(drawing, step.args),
        kwargs=(*(kw for kw in step.kwargs if kw[0] != "generator"), ("generator", generator)),
    )
    fill = fill_overload(op)
    if fill is None:
        return replace(step, function=operands_laid_out(_bind(step, drawing, call)[0], call))
    function, step = _bind(step, fill, call)
    return replace(step, function=filler(function, call.inputs[0]), name=step.name, in_place=function)


def _without_generator_slot(op: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    at = next(i for i, a in enumerate(op._schema.arguments) if a.name == "generator")
    return args[:at]


def _bind(step: Step, op: OpOverload, call: Call) -> tuple[Callable[..., Any], Step]:
    """The fastest function for an overload, and the step with arguments that it takes."""
    args = tuple(_example(a, call) for a in step.args)
    kwargs = {k: _example(v, call) for k, v in step.kwargs}
    key = (op, tuple(map(_kind, args)), tuple((k, _kind(v)) for k, v in kwargs.items()))
    function = _FASTEST.get(key)
    if function is None:
        function = _FASTEST[key] = fastest(op, args, kwargs)
    if function is op._op and not reaches(function, op, args, kwargs)[0]:
        wrapped = _numbers_as_tensors(step, op)
        if wrapped is not step:
            return _bind(wrapped, op, call)
    return function, step


_FASTEST: dict[Any, Callable[..., Any]] = {}
"""By overload and the kinds of the arguments: bounded by the kinds of calls that a process makes."""


def _numbers_as_tensors(step: Step, op: OpOverload) -> Step:
    """The step with every number that stands where the schema wants a tensor made a tensor."""
    types = {a.name: a.type for a in op._schema.arguments}
    names = list(types)

    def wrap(name: str, template: Any) -> Any:
        value = template.type if type(template) is Number else type(template)
        if value not in _NUMBER_DTYPES or not isinstance(types[name], torch.TensorType):
            return template
        return AsTensor(template, _NUMBER_DTYPES[value] or torch.get_default_dtype())

    args = tuple(wrap(n, a) for n, a in zip(names, step.args, strict=False))
    kwargs = tuple((n, wrap(n, v)) for n, v in step.kwargs)
    return step if args == step.args and kwargs == step.kwargs else replace(step, args=args, kwargs=kwargs)


_NUMBER_DTYPES: dict[type, torch.dtype | None] = {
    bool: torch.bool,
    int: torch.int64,
    float: None,
    complex: torch.complex64,
}


def _example(template: Any, call: Call) -> Any:
    """A value of the kind that will stand here: tensors on the meta device, any number of a number's type."""
    kind = type(template)
    if kind is Operand:
        shape = call.inputs[template.index]
        return torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype, device="meta")
    if kind is Number:
        return template.type(1)
    if kind is tuple:
        return tuple(_example(x, call) for x in template)
    if kind is AsTensor:
        return torch.empty((), dtype=template.dtype, device="meta")
    return template


def _kind(example: Any) -> Any:
    if isinstance(example, torch.Tensor):
        return example.dtype, example.dim() == 0
    if isinstance(example, tuple):
        return tuple, frozenset(map(_kind, example))
    return type(example)


def _is_same(call: Call) -> bool:
    """Whether a copy has the layout of its operand. A complex one may be there to carry a conjugation out."""
    shape = call.inputs[0]
    strided = dict(call.kwargs).get("layout") in (None, torch.strided)
    return strided and shape is call.outputs[0] and not shape.dtype.is_complex


def _view_behind(op: OpOverload) -> OpOverload | None:
    """``aten.permute`` for ``aten.permute_copy``, and so on: no copy where only the values matter."""
    if op._schema.name in _STAY_COPIES or not op._schema.name.startswith("aten::"):
        return None
    packet = getattr(torch.ops.aten, op._schema.name[len("aten::") :].removesuffix("_copy"), None)
    found = None if packet is None else matching_overload(op, packet)
    return found if found is not None and declared_aliases(found) else None


def _with_factory_arguments(op: OpOverload, call: Call, device: torch.device) -> tuple[tuple[str, Any], ...]:
    """The keyword arguments, with the device and the dtype that a factory would else take from the process."""
    arguments = {a.name for a in op._schema.arguments}
    given = dict(call.kwargs)
    if "device" in arguments and "self" not in arguments:
        given["device"] = device
        if "dtype" in arguments and given.get("dtype") is None and call.outputs and call.outputs[0] is not None:
            given["dtype"] = call.outputs[0].dtype
    return tuple(given.items())


def _form(op: OpOverload, call: Call) -> Form:
    returns = op._schema.returns
    if not returns:
        return Form.ONE
    if len(returns) == 1:
        return Form.ONE if isinstance(returns[0].type, torch.TensorType) else Form.SEQUENCE
    return (
        Form.SEQUENCE
        if len(returns) == len(call.outputs) and not any(isinstance(r.type, torch.ListType) for r in returns)
        else Form.NESTED
    )
