"""Lowered modules to files."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import torchport_runtime.manifest as saved
from torchport.aot.captured import Constant
from torchport.aot.method import Method
from torchport.aot.tree_specs import tree_of_spec
from torchport.backend import backends
from torchport.errors import SavedFileError
from torchport.ir.shape import dtype_name
from torchport.ir.size_expression import SizeExpression
from torchport_runtime.paths import path_of
from torchport_runtime.saved_module import write_module
from torchport_runtime.trees import Tree
from torchport_runtime.weights import ITEM_BYTES, RawTensor

WEIGHT_DTYPES = {
    dtype_name(d).upper().replace("B8", "BOOL"): d for d in vars(torch).values() if isinstance(d, torch.dtype)
}
_WEIGHT_NAMES = {d: name for name, d in WEIGHT_DTYPES.items() if name in ITEM_BYTES}
DTYPES = {dtype_name(d): d for d in vars(torch).values() if isinstance(d, torch.dtype)}
if TYPE_CHECKING:
    # A lowered module saves itself with this module, which therefore only names its type.
    from torchport.aot.lowered_module import LoweredModule

_SAVED_KINDS = "finite numbers, texts, lists and dicts are saved"


def save(module: LoweredModule, path: str | os.PathLike[str]) -> None:
    """Writes a lowered module to a file, whole or not at all.

    Raises:
        InvalidArgumentError: that is no path.
        SavedFileError: the file cannot be written, or something of the module has no form in a file; all is listed.
    """
    path = path_of(path)
    wrong: list[str] = []
    graphs: dict[str, str] = {}
    payloads: dict[str, bytes | memoryview] = {}
    methods = {}
    now = module._weights
    first = _first_names(now)
    for name, method in module._methods.items():
        methods[name] = _method_to_file(method, module.fallback, first, graphs, payloads, wrong)
    wrong += _changes(module, now)
    weights, tensors = _weights_to_file(module, now, first, wrong)
    attributes = {}
    for name, value in module.own_attributes().items():
        if not is_json(value):
            wrong.append(f"the attribute {name!r} is {_found(value)}; {_SAVED_KINDS}, and tensors as buffers")
        if module.has_itself(name):
            wrong.append(f"the attribute {name!r} hides one that every lowered module has; give it another name")
        attributes[name] = value
    if wrong:
        raise SavedFileError("\n  ".join([f"cannot save {path}:", *wrong]))
    manifest = saved.Manifest(
        module.backend, _versions(module.backend), "any", module.fallback, methods, weights, attributes
    )
    write_module(path, manifest, graphs, tensors, payloads)


def _versions(backend: str) -> dict[str, str]:
    """Of what made the file; a backend that states none is left out."""
    made = {"torchport": version("torchport"), "torch": torch.__version__}
    known = backends().get(backend)
    return made | ({backend: known.version} if known is not None and known.version else {})


def _first_names(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For every name of a tensor the first one that it has; under that it is in the file."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in weights.items()}


def _changes(module: LoweredModule, now: Mapping[str, torch.Tensor]) -> list[str]:
    """What was changed since the module was lowered and has no form in a file."""
    wrong = []
    for name, form in module._forms.items():
        found = (now[name].dtype, now[name].shape) if name in now else None
        if found != form:
            is_now = "is gone" if found is None else f"is {_form(*found)} now"
            wrong.append(f"the weight {name!r} {is_now}; the methods take it as {_form(*form)}")
    plain = vars(nn.Module())
    for path, inner in module.named_modules():
        if inner is not module and type(inner) is not nn.Module:
            wrong.append(f"the submodule {path!r} is a {type(inner).__name__}, which was not lowered")
        elif inner is not module:
            set_here = sorted(set(vars(inner)) - set(plain))
            wrong += [f"the attribute '{path}.{name}' was set on a submodule; set it on the whole" for name in set_here]
    return wrong


def _form(dtype: torch.dtype, sizes: torch.Size) -> str:
    return f"{dtype_name(dtype)}[{', '.join(map(str, sizes))}]"


def _method_to_file(
    method: Method,
    fallback: str,
    first: Mapping[str, str],
    graphs: dict[str, str],
    payloads: dict[str, Any],
    wrong: list[str],
) -> saved.Method:
    graphs[f"graphs/{method.name}.txt"] = str(method.graph)
    partitions = {}
    for name, part in method.parts.items():
        graph = ""
        if fallback == "interpreter" and part.graph is not None:
            graph = f"graphs/{method.name}.{name}.txt"
            graphs[graph] = str(part.graph)
        payload = f"payloads/{method.name}.{name}"
        payloads[payload] = part.payload
        partitions[name] = saved.Partition(part.backend, payload, graph, part.node_count)
    constants = [
        *((f"input {i}", c.value) for i, c in _constants(method.inputs)),
        *((f"result {i}", c.value) for i, c in _constants(method.outputs)),
    ]
    for what, value in (("options", method.options), *constants):
        if not is_json(value):
            wrong.append(f"{method.name}: {what} is {_found(value)}; {_SAVED_KINDS}")
    return saved.Method(
        f"graphs/{method.name}.txt",
        partitions,
        tuple(method.arguments),
        tuple((kind, first.get(w, w) if kind == "state" else w) for kind, w in method.results),
        tuple(_number_to_file(n.numbers[i]) for n, i in method.graph.numbers),
        tuple(map(_input_to_file, method.inputs)),
        tuple(map(_output_to_file, method.outputs)),
        {n: saved.Symbol(s.leaf, s.dim, s.low, s.high) for n, s in method.symbols.items()},
        _tree(method.in_spec, method.name, wrong),
        _tree(method.out_spec, method.name, wrong),
        tuple(map(_parameter_to_file, method.parameters)),
        method.training,
        None if method.options is None else dict(method.options),
        method.refusals,
    )


def _tree(spec: pytree.TreeSpec, method: str, wrong: list[str]) -> Tree:
    try:
        return tree_of_spec(spec)
    except SavedFileError as error:
        wrong.append(f"{method}: {error}")
        return Tree("none")


def _constants(slots: list[Any]) -> list[tuple[int, Constant]]:
    return [(i, s) for i, s in enumerate(slots) if isinstance(s, Constant)]


def is_json(value: Any) -> bool:
    """Whether a value is of JSON's types, so that a file gives it back as it was."""
    plain = dict(value) if isinstance(value, Mapping) else value
    try:
        return bool(json.loads(json.dumps(plain, allow_nan=False)) == plain)
    except (TypeError, ValueError):
        return False


def _found(value: Any) -> str:
    return repr(value) if isinstance(value, float) else f"a {type(value).__name__}"


def _number_to_file(value: Any) -> Any:
    if isinstance(value, SizeExpression):
        return value.text
    return {"real": value.real, "imag": value.imag} if isinstance(value, complex) else value


def _input_to_file(wanted: Any) -> saved.Slot:
    if isinstance(wanted, Constant):
        return saved.Slot("constant", value=wanted.value)
    kind, sizes = wanted
    if kind == "int":
        return saved.Slot("int", value=sizes)
    return saved.Slot("tensor", dtype_name(kind), tuple(sizes))


def _output_to_file(output: Any) -> saved.Slot:
    if output is None:
        return saved.Slot("tensor")
    if isinstance(output, SizeExpression):
        return saved.Slot("size", value=output.text)
    return saved.Slot("constant", value=output.value)


def _parameter_to_file(parameter: inspect.Parameter) -> saved.Parameter:
    has_default = parameter.default is not inspect.Parameter.empty
    default = parameter.default if has_default and is_json(parameter.default) else None
    return saved.Parameter(parameter.name, parameter.kind.name, has_default, default)


def _weights_to_file(
    module: LoweredModule, now: Mapping[str, torch.Tensor], first: Mapping[str, str], wrong: list[str]
) -> tuple[dict[str, saved.Weight], dict[str, RawTensor]]:
    state = {first.get(w, w) for m in module._methods.values() for kind, w in m.results if kind == "state"}
    weights: dict[str, saved.Weight] = {}
    tensors: dict[str, RawTensor] = {}
    for name, tensor in now.items():
        shares = "" if first[name] == name else first[name]
        weights[name] = saved.Weight(shares, name in state, isinstance(tensor, nn.Parameter), name in module._passing)
        if shares:
            continue
        dtype = _WEIGHT_NAMES.get(tensor.dtype)
        if dtype is None:
            wrong.append(f"the weight {name!r} is of {tensor.dtype}, which the file has no form for")
            continue
        flat = tensor.detach().contiguous().reshape(-1)
        content: Any = flat.view(torch.uint8).numpy() if flat.numel() else b""
        data = memoryview(content)
        tensors[name] = RawTensor(dtype, tuple(tensor.shape), data)
    return weights, tensors
