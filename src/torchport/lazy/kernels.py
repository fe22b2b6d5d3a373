"""Kernels for every operator: one rule for functional operators, one for those that write, one for the rest.

An operator that writes (in place, ``out=``, or otherwise) is traced as its functional form, whose results are then
written to the tensors: with storages that know their contents, that is all there is to mutation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.graph import increment_version

from torchport import metrics
from torchport.backend import Shape, Value
from torchport.ir.call import Call
from torchport.ir.graph import Graph
from torchport.ir.inference import has_mask
from torchport.ir.node import Node
from torchport.lazy import active, eager
from torchport.lazy.compilation import run_graph
from torchport.lazy.recording import (
    Arguments,
    Entry,
    build_entry,
    collect,
    cut_if_due,
    record,
    with_bits,
    write,
)
from torchport.lazy.results import NO_BITS, bits_of_results, new_result, pack_results, set_bits
from torchport.lazy.schema import Kind, Operator, describe
from torchport.lazy.specials import resize_output_
from torchport.lazy.tensor import new_tensor
from torchport.lazy.trace import LOCK
from torchport.lazy.wrapped_numbers import as_tensors, refuses_numbers
from torchport.lazy.write_probe import Layout, is_aliased, probe_writes

Kernel = Callable[..., Any]
_NO_NAMES: frozenset[str] = frozenset()


def make_kernel(op: OpOverload) -> Kernel:
    """The kernel of an overload, chosen by its schema."""
    info = describe(op)
    if info.functional is None:
        return _eager_kernel(info, "it has no functional form")
    if info.mutations:
        return _mutating_kernel(info)
    if not info.returns:
        return _checking_kernel(info)
    return _functional_kernel(info)


def _eager_kernel(info: Operator, reason: str) -> Kernel:
    op = info.op

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with LOCK:
            return eager.run(op, args, kwargs, reason)

    return kernel


def _checking_kernel(info: Operator) -> Kernel:
    """An operator without a result, such as ``_assert_async``: it raises, or does nothing, so it runs at once."""
    op = info.op

    def kernel(*args: Any, **kwargs: Any) -> None:
        with LOCK:
            eager.run(op, args, kwargs, "", count=False)

    return kernel


def _functional_kernel(info: Operator) -> Kernel:
    op = info.op
    entries: dict[Any, Entry] = {}
    counter = metrics.counter(f"lazy::{info.counter_name}")
    single = info.returns == ("tensor",)
    takes_generator = Kind.GENERATOR in info.keyword_kinds.values()
    no_numbers = refuses_numbers(info)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with LOCK:
            if no_numbers:
                args = as_tensors(info, args)
            if takes_generator and _has_generator(info, args, kwargs):
                return eager.run(op, args, kwargs, "", count=False)
            found = collect(info, args, kwargs, _NO_NAMES)
            key = tuple(found[0])
            entry = entries.get(key)
            if entry is None:
                try:
                    entry = entries[key] = build_entry(info, op, args, kwargs, found, _NO_NAMES)
                    if bits := bits_of_results(op, entry.call.outputs, args, kwargs):
                        entry.bits, entry.plain = bits, False
                except NotImplementedError:
                    if op.namespace == "aten":
                        raise
                    entry = entries[key] = Entry(
                        Call(op), "it has no fake implementation, so its sizes are unknown", False
                    )
            elif entry.range is not None:
                entry.range.check(found[2])
            if entry.refusal:
                return eager.run(op, args, kwargs, entry.refusal)
            if entry.dynamic:
                return _undeferred(info, entry, args, kwargs)
            counter.value += 1
            node = record(entry.call, found[1], found[2])
            if single and entry.plain:
                shape = entry.results[0]
                result: Any = None if shape is None else new_tensor(shape, Value(node))
            else:
                result = pack_results(info.returns, _new_results(entry, node))
            if active.cut_due:
                cut_if_due()
            return result

    return kernel


def _new_results(entry: Entry, node: Node) -> list[torch.Tensor | None]:
    bits = entry.bits or (NO_BITS,) * len(entry.results)
    return [
        None if s is None else new_result(s, Value(node, i), b)
        for i, (s, b) in enumerate(zip(entry.results, bits, strict=True))
    ]


def _mutating_kernel(info: Operator) -> Kernel:
    op, functional = info.op, info.functional
    assert functional is not None
    entries: dict[Any, Entry] = {}
    counter = metrics.counter(f"lazy::{describe(functional).counter_name}")
    functional_info = describe(functional)
    outs = frozenset(m.name for m in info.mutations if m.is_out)
    takes_generator = Kind.GENERATOR in info.keyword_kinds.values()
    in_place = any(not m.is_out and not m.is_list for m in info.mutations) and not outs
    lists = [m.name for m in info.mutations if m.is_list and not m.is_out]
    draws = in_place and torch.Tag.nondeterministic_seeded in functional.tags
    takes_dtype = bool(outs) and "dtype" in functional_info.keyword_kinds
    no_numbers = refuses_numbers(info)
    position = {m.name: m.position for m in info.mutations}
    defaults = _missing_defaults(op, functional)

    def written(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        at = position[name]
        return args[at] if at < len(args) else kwargs[name]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with LOCK:
            if no_numbers:
                args = as_tensors(info, args)
            if takes_generator and _has_generator(info, args, kwargs):
                return eager.run(op, args, kwargs, "", count=False)
            for m in info.mutations:
                if _is_foreign(written(m.name, args, kwargs)):
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at least two devices, "
                        f"{active.device_type}:0 and cpu!"
                    )
            if len(args) < len(defaults):
                args += defaults[len(args) :]
            found = collect(info, args, kwargs, outs)
            if outs:
                # The dtype of ``out`` can decide in which dtype the operator computes, and eager may leave its layout.
                for name in outs:
                    target = written(name, args, kwargs)
                    found[0].extend((target.dtype, target.shape, target.stride()))
            if draws and type(args[0]) is torch.Tensor:
                # Numbers are drawn in the order of the layout that is filled, which its value need not have.
                found[3][0] = Shape(args[0].dtype, tuple(args[0].shape), args[0].stride())
                found[0].append(found[3][0])
            key = tuple(found[0])
            entry = entries.get(key)
            aliased = (in_place and is_aliased(args, args[0])) or any(is_aliased(args, kwargs.get(n)) for n in outs)
            if aliased and has_mask(op, args):
                # Which cells are written, and whether eager minds, depends on the values.
                return eager.run(op, args, kwargs, "", count=False)
            if entry is None:
                inputs, keywords = _functional_arguments(info, functional_info, args, kwargs, outs)
                try:
                    entry = build_entry(functional_info, functional, inputs, keywords, found, outs)
                except Exception:
                    # Eager may refuse what is written to before it refuses what is computed.
                    probe_writes(info, args, kwargs)
                    raise
                if takes_dtype and keywords.get("dtype") is None:
                    entry = _in_dtype_of_out(info, functional_info, entry, inputs, kwargs, found, outs)
                if aliased or in_place or (outs and not entry.dynamic):
                    entry.left = probe_writes(info, args, kwargs)
                entries[key] = entry
            else:
                if entry.range is not None:
                    entry.range.check(found[2])
                if aliased:
                    probe_writes(info, args, kwargs)
            if entry.refusal:
                return eager.run(op, args, kwargs, entry.refusal)
            if entry.dynamic:
                return _write_undeferred(info, functional_info, entry, args, kwargs, written)
            counter.value += 1
            node = record(entry.call, found[1], found[2])
            result = _write_results(info, functional_info, entry, node, args, kwargs, written)
            for name in lists:
                # Autograd leaves that to the kernels of operators on lists.
                increment_version(written(name, args, kwargs))
            if active.cut_due:
                cut_if_due()
            return result

    return kernel


def _missing_defaults(op: OpOverload, functional: OpOverload) -> tuple[Any, ...]:
    """Positional defaults of ``op`` up to the last one that its functional form has no default for."""
    own = [a for a in op._schema.arguments if not a.kwarg_only]
    theirs = [a for a in functional._schema.arguments if not a.kwarg_only]
    needed = 0
    for i, (a, b) in enumerate(zip(own, theirs, strict=False)):
        if a.has_default_value() and not b.has_default_value():
            needed = i + 1
    return tuple(a.default_value if a.has_default_value() else None for a in own[:needed])


def _functional_arguments(
    info: Operator, functional: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], outs: frozenset[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments for the functional form; a dtype that it takes from ``out`` is named."""
    keywords = {k: v for k, v in kwargs.items() if k not in outs}
    if outs and "dtype" in functional.keyword_kinds and "dtype" not in info.keyword_kinds:
        for m in info.mutations:
            keywords["dtype"] = kwargs[m.name].dtype
    return args, keywords


def _in_dtype_of_out(
    info: Operator,
    functional: Operator,
    entry: Entry,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    found: Arguments,
    outs: frozenset[str],
) -> Entry:
    """The entry of an operator that computes in the dtype that it is given to fill, where none is asked for."""
    target, shape = kwargs[info.mutations[0].name], entry.call.outputs[info.mutations[0].result]
    if shape is None or target.dtype is shape.dtype:
        return entry
    keywords = {k: v for k, v in kwargs.items() if k not in outs}
    return build_entry(functional, functional.op, args, {**keywords, "dtype": target.dtype}, found, outs)


def _write_results(
    info: Operator,
    functional: Operator,
    entry: Entry,
    node: Node,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    written: Callable[..., Any],
) -> Any:
    flat = [None if s is None else (Value(node, i), s) for i, s in enumerate(entry.call.outputs)]
    # Fresh results come first, then those of the written arguments; a list is as long as the one it is written to.
    results: list[Any] = flat[: len(info.fresh_results)]
    at = len(results)
    for m in info.mutations:
        if m.is_list:
            length = len(written(m.name, args, kwargs))
            results.append(flat[at : at + length])
            at += length
        else:
            results.append(flat[at])
            at += 1
    targets = []
    for m in info.mutations:
        target = written(m.name, args, kwargs)
        targets.append(target)
        new = results[m.result]
        if m.is_list:
            for t, n in zip(target, new, strict=True):
                if n is not None:
                    store(t, n[0], n[1], m.is_out)
        elif target is not None and new is not None:
            store(target, new[0], new[1], m.is_out, entry.left.get(m.name))
    fresh = [None if results[i] is None else new_result(results[i][1], results[i][0]) for i in info.fresh_results]
    aliased = iter(targets)
    others = iter(fresh)
    returns = [next(aliased) if r.alias_info is not None else next(others) for r in info.op._schema.returns]
    if not returns:
        return None
    return returns[0] if len(returns) == 1 else tuple(returns)


def _write_undeferred(
    info: Operator,
    functional: Operator,
    entry: Entry,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    written: Callable[..., Any],
) -> Any:
    """``out=`` of an operator whose output sizes depend on values: it runs at once, and the results are copied."""
    names = {m.name for m in info.mutations}
    inputs = {k: v for k, v in kwargs.items() if k not in names}
    results = _undeferred(functional, entry, args, inputs)
    if len(functional.returns) == 1:
        results = (results,)
    targets = []
    for m in info.mutations:
        target, result = written(m.name, args, kwargs), results[m.result]
        if target.shape != result.shape:
            resize_output_(target, result.shape, target.device, result.stride())
        targets.append(target.copy_(result))
    return targets[0] if len(targets) == 1 else tuple(targets)


def store(tensor: torch.Tensor, value: Value, shape: Shape, resize: bool, left: Layout | None = None) -> None:
    """Writes a value to a tensor: converted to its dtype, and, for ``out=``, after resizing it.

    Args:
        tensor: what is written to.
        value: the new contents.
        shape: the value's.
        resize: whether the tensor takes the value's sizes.
        left: how eager would leave the tensor; by default in the value's strides where its sizes change.

    Raises:
        RuntimeError: the value's dtype cannot be cast to the tensor's; eager's text.
    """
    if left is not None:
        if tuple(tensor.shape) != left.sizes or tensor.stride() != left.strides:
            resize_output_(tensor, left.sizes, tensor.device, left.strides)
        if (tensor.is_conj(), tensor.is_neg()) != left.bits:
            set_bits(tensor, left.bits)
    elif resize and tuple(tensor.shape) != shape.sizes:
        resize_output_(tensor, shape.sizes, tensor.device, shape.strides)
    if tensor.dtype is not shape.dtype:
        if not torch.can_cast(shape.dtype, tensor.dtype):
            raise RuntimeError(
                f"result type {_scalar_name(shape.dtype)} can't be cast to the desired output type "
                f"{_scalar_name(tensor.dtype)}"
            )
        value = Value(active.trace.add_node(active.builder().make_cast(value, tensor.dtype)))
    write(tensor, with_bits(tensor, value))


def _scalar_name(dtype: torch.dtype) -> str:
    return {
        torch.float32: "Float",
        torch.float64: "Double",
        torch.float16: "Half",
        torch.bfloat16: "BFloat16",
        torch.int64: "Long",
        torch.int32: "Int",
        torch.int16: "Short",
        torch.int8: "Char",
        torch.uint8: "Byte",
        torch.bool: "Bool",
        torch.complex64: "ComplexFloat",
        torch.complex128: "ComplexDouble",
        torch.complex32: "ComplexHalf",
    }.get(dtype, str(dtype))


def _has_generator(info: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if kwargs.get("generator") is not None:
        return True
    return any(k == Kind.GENERATOR and a is not None for k, a in zip(info.kinds, args, strict=False))


def _is_foreign(tensor: Any) -> bool:
    if isinstance(tensor, (list, tuple)):
        return any(_is_foreign(t) for t in tensor)
    return tensor is not None and active.host_mode is None and tensor.device.type != active.device_type


def _undeferred(info: Operator, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator whose output sizes depend on values: everything before it is launched, and it runs at once."""
    backend = active.backend()
    if not backend.capabilities.dynamic_outputs:
        return eager.run(info.op, args, kwargs, "the sizes of its result depend on values")
    eager.launch_operands(info.counter_name)
    # Read again: the operands are device data now, or views of it.
    _, operands, numbers, _ = collect(info, args, kwargs, _NO_NAMES)
    metrics.increment(f"lazy::{info.counter_name}")
    node = Node(entry.call, tuple(operands), tuple(numbers))
    wanted = [Value(node, i) for i, s in enumerate(entry.call.outputs) if s is not None]
    data = iter(run_graph(Graph.of_results(wanted), backend, active.backend_device()))
    flat: list[Any] = []
    for shape in entry.call.outputs:
        if shape is None:
            flat.append(None)
        else:
            d = next(data)
            own = Shape(d.shape.dtype, d.shape.sizes, d.shape.strides)
            flat.append(new_result(own, Value(active.builder().make_device_data(d))))
    return pack_results(info.returns, flat)
