"""Files to lowered modules."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

import torchport_runtime.manifest as saved
from torchport.aot.captured import Constant, Symbol
from torchport.aot.lowered_module import FALLBACKS, LoweredModule, has_of_its_own
from torchport.aot.method import Method, Part
from torchport.aot.saving import DTYPES, WEIGHT_DTYPES
from torchport.aot.tree_specs import spec_of_tree
from torchport.errors import CompileSpecError, DamagedFileError, IRSyntaxError
from torchport.ir.facts import facts_of
from torchport.ir.graph import Graph
from torchport.ir.parser import parse_graph
from torchport.ir.size_expression import SizeExpression
from torchport.ir.untrusted import graphs_from_a_file
from torchport_runtime.checks import check_module
from torchport_runtime.saved_module import SavedModule, open_module
from torchport_runtime.weights import RawTensor


def load(path: str | os.PathLike[str], fallback: str | None = None) -> LoweredModule:
    """The lowered module of a file, ready to be called here.

    Args:
        path: the file.
        fallback: ``"error"`` or ``"interpreter"``; what was asked for at creation when left out.

    Raises:
        InvalidArgumentError: that is no path.
        FileNotFoundError: there is no such file.
        SavedFileError: it cannot be loaded: damaged, of another version, for another machine.
        UnknownBackendError, BackendNotAvailableError: its backend is missing here, and nothing may run in its place.
    """
    if fallback is not None and fallback not in FALLBACKS:
        raise CompileSpecError(f"load(…, fallback={fallback!r}): the legal values are 'error' and 'interpreter'")
    found = open_module(path, writable=True)
    with graphs_from_a_file():
        graphs = {name: _graph(found, name, text) for name, text in found.graphs.items()}
        check_module(found, {name: facts_of(graph) for name, graph in graphs.items()})
        methods = {name: _method_from_file(name, m, graphs, found) for name, m in found.manifest.methods.items()}
        chosen = fallback or found.manifest.fallback
        weights = found.manifest.weights
        _check_names(found, [*(m for m in methods if m != "forward"), *(w.partition(".")[0] for w in weights)])
        module = LoweredModule(
            *(found.manifest.backend, methods, _weights_from_file(found), chosen),
            require=True,
            passing=frozenset(name for name, weight in weights.items() if weight.is_passing),
        )
    for name, value in found.manifest.attributes.items():
        if not name.isidentifier() or module.has_itself(name):
            raise DamagedFileError(f"{found.path}: the attribute {name!r} would hide one that a lowered module has")
        setattr(module, name, value)
    return module


def _check_names(found: SavedModule, names: Iterable[str]) -> None:
    for name in names:
        if has_of_its_own(name):
            raise DamagedFileError(f"{found.path}: {name!r} would hide what a lowered module has itself")


def _graph(found: SavedModule, name: str, text: str) -> Graph:
    try:
        return parse_graph(text)
    except IRSyntaxError as error:
        raise DamagedFileError(f"{found.path}: {name}: {error}") from error


def _weights_from_file(found: SavedModule) -> dict[str, torch.Tensor]:
    """The tensors; those that no method changes lie where the file is mapped."""
    made: dict[str, torch.Tensor] = {}
    for name, weight in found.manifest.weights.items():
        if weight.shares:
            continue
        raw = found.weights[name]
        made[name] = _tensor(raw, weight)
    return {name: made[weight.shares or name] for name, weight in found.manifest.weights.items()}


def _tensor(raw: RawTensor, weight: saved.Weight) -> torch.Tensor:
    dtype = WEIGHT_DTYPES[raw.dtype]
    if raw.data.nbytes == 0:
        tensor = torch.empty(raw.sizes, dtype=dtype)
    else:
        tensor = _mapped(raw.data).view(dtype).reshape(raw.sizes)
    if weight.is_state:
        tensor = tensor.clone()
    return nn.Parameter(tensor, requires_grad=False) if weight.is_parameter else tensor


def _mapped(data: memoryview) -> torch.Tensor:
    """Mapped bytes as a tensor. Whoever writes to it (``load_state_dict`` does) has a copy of those pages."""
    return torch.frombuffer(data, dtype=torch.uint8)


def _method_from_file(name: str, m: saved.Method, graphs: Mapping[str, Graph], found: SavedModule) -> Method:
    graph = graphs[m.graph]
    for (node, i), number in zip(graph.numbers, m.numbers, strict=True):
        if isinstance(number, str):
            numbers = list(node.numbers)
            numbers[i] = SizeExpression(numbers[i], number)
            node.numbers = tuple(numbers)
    return Method(
        name,
        graph,
        {
            n: Part(p.backend, found.payloads[p.payload], graphs[p.graph] if p.graph else None, p.node_count)
            for n, p in m.partitions.items()
        },
        list(m.arguments),
        list(m.results),
        list(map(_input_from_file, m.inputs)),
        list(map(_output_from_file, m.outputs)),
        {n: Symbol(s.leaf, s.dim, s.low, s.high) for n, s in m.symbols.items()},
        spec_of_tree(m.in_tree),
        spec_of_tree(m.out_tree),
        list(map(_parameter_from_file, m.parameters)),
        m.training,
        m.options,
        m.refusals,
    )


def _input_from_file(slot: saved.Slot) -> Any:
    if slot.kind == "constant":
        return Constant(slot.value)
    if slot.kind == "int":
        return ("int", slot.value)
    if slot.dtype not in DTYPES:
        raise DamagedFileError(f"manifest.json: {slot.dtype!r} is no dtype")
    return (DTYPES[slot.dtype], slot.sizes)


def _output_from_file(slot: saved.Slot) -> Any:
    if slot.kind == "tensor":
        return None
    return SizeExpression(0, slot.value) if slot.kind == "size" else Constant(slot.value)


def _parameter_from_file(parameter: saved.Parameter) -> inspect.Parameter:
    kind = getattr(inspect.Parameter, parameter.kind)
    default = parameter.default if parameter.has_default else inspect.Parameter.empty
    return inspect.Parameter(parameter.name, kind, default=default)
