"""From a method of a module to a graph: torch.export captures, and what a call needs to know is read off."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from torchport.aot.captured import Capture, Constant
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.conditionals import inline_conditionals
from torchport.aot.dim_names import SymbolNames, given_names
from torchport.aot.export_errors import ON_VALUES, reason_and_remedy
from torchport.aot.exported import (
    converted,
    decomposed,
    drop_checks_of_types,
    program_of_file,
    torch_warns_of_itself,
    trains,
)
from torchport.aot.input_symbols import name_symbols
from torchport.errors import CaptureError
from torchport.ir.fx_import import import_fx
from torchport.ir.size_expression import SizeExpression, expression_text

Capturable = nn.Module | ExportedProgram | str | Path


def capture_all(source: Capturable, specs: Mapping[str, CompileSpec]) -> dict[str, Capture]:
    """The captured methods of a module, of an exported program, or of a ``.pt2`` file.

    Raises:
        CaptureError: torch.export cannot capture a method; its reason is the cause.
        CompileSpecError: the file is none that torch.export wrote.
    """
    if isinstance(source, str | Path):
        source = program_of_file(Path(source))
    if isinstance(source, ExportedProgram):
        return {"forward": capture_program("forward", source, None, trains(source))}
    return {name: _capture_method(source, name, spec) for name, spec in specs.items()}


def _capture_method(module: nn.Module, name: str, spec: CompileSpec) -> Capture:
    if isinstance(module, torch.jit.ScriptModule):
        return capture_program(name, converted(module, name, spec), None, module.training)
    method = getattr(module, name)
    subject = module
    if name != "forward":
        # torch.export takes a module's forward, so another method is the forward of a shallow copy.
        subject = copy.copy(module)
        is_bound = isinstance(method, types.MethodType) and method.__self__ is module
        subject.__dict__["forward"] = types.MethodType(method.__func__, subject) if is_bound else method
    args, kwargs = _distinct(module, spec)
    try:
        with torch_warns_of_itself():
            program = torch.export.export(subject, args, kwargs, dynamic_shapes=spec.dynamic_shapes, strict=False)
    except Exception as error:
        reason = reason_and_remedy(error, spec.dynamic_shapes is not None)
        raise CaptureError(f"{type(module).__name__}.{name} cannot be captured by torch.export: {reason}") from error
    parameters = list(inspect.signature(method).parameters.values())
    kwargs = {k: kwargs[k] for k in program.call_spec.in_spec.children()[1].context}
    names = SymbolNames(given_names(method, args, kwargs, spec.dynamic_shapes))
    return capture_program(name, program, parameters, module.training, names)


def _distinct(module: nn.Module, spec: CompileSpec) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example arguments, each tensor another object.

    torch.export takes one tensor that is given twice, or is a weight too, for one input, and the graph would use a
    single one of them ever after.
    """
    seen = {id(t) for t in (*module.parameters(), *module.buffers())}

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in seen:
            leaf = leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_(leaf.requires_grad)
        seen.add(id(leaf))
        kept.append(leaf)
        return leaf

    kept: list[torch.Tensor] = []  # an id is an object's own only while it lives
    args, kwargs = pytree.tree_map(own, (spec.args, dict(spec.kwargs or {})))
    return args, kwargs


def capture_program(
    name: str,
    program: ExportedProgram,
    parameters: list[inspect.Parameter] | None,
    training: bool,
    names: SymbolNames | None = None,
) -> Capture:
    """The capture of an exported program.

    Args:
        name: the method's name.
        program: the program; it is decomposed to core ATen operators.
        parameters: of the method's signature; ``None`` where it is not known but as the program has it.
        training: whether the module was in training mode.
        names: those that the user gave to sizes.

    Raises:
        CaptureError: torch cannot decompose it, or it has what no graph of ours has.
    """
    program = decomposed(name, program)
    inline_conditionals(name, program.graph_module)
    drop_checks_of_types(program.graph)
    signature = program.graph_signature
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    weights: dict[str, torch.Tensor] = {n: t for n, t in program.state_dict.items() if t.layout is torch.strided}
    arguments: list[tuple[str, Any]] = []
    inputs: list[Any] = []
    names = SymbolNames({}) if names is None else names
    user = [n.meta.get("val") for n in _user_placeholders(placeholders, signature)]
    symbols = name_symbols(name, user, names, program)
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        value = node.meta.get("val")
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(_input(value, names))
            if isinstance(value, torch.Tensor) and node.users:
                arguments.append(("user", len(inputs) - 1))
        elif spec.target is not None and isinstance(value, torch.Tensor) and not node.users:
            continue
        elif spec.target is not None and isinstance(value, torch.Tensor):
            weights[spec.target] = _weight(program, spec.target)
            arguments.append(("weight", spec.target))
        else:
            raise CaptureError(f"{name}: the input {node.name} is a {spec.kind.name.lower()}, which is not supported")
    results: list[tuple[str, Any]] = []
    outputs: list[Any] = []
    kept: list[fx.Node] = []
    state: set[str] = set()
    graph_module = _copy(program.graph_module)
    (output,) = [n for n in graph_module.graph.nodes if n.op == "output"]
    user_inputs = {node.name: i for i, node in enumerate(_user_placeholders(placeholders, signature))}
    for value, spec in zip(output.args[0], signature.output_specs, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            if isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor):
                results.append(("user", len(outputs)))
                kept.append(value)
                outputs.append(None)
            else:
                outputs.append(_output(value, names))
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            state.add(spec.target)
            results.append(("state", spec.target))
            kept.append(value)
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            results.append(("input", user_inputs[spec.target]))
            kept.append(value)
        else:
            raise CaptureError(f"{name}: an output is a {spec.kind.name.lower()}, which is not supported")
    output.args = (tuple(kept),)
    for node in [n for n in graph_module.graph.nodes if n.op == "placeholder"]:
        if not node.users:
            graph_module.graph.erase_node(node)
    try:
        graph, made = import_fx(graph_module, names)
    except ValueError as error:
        depends = "not known before it runs" in str(error) or "known only when it runs" in str(error)
        raise CaptureError(f"{name} cannot be captured: {error}" + (f"\n{ON_VALUES}" if depends else "")) from error
    by_name = {n.name: made[n] for n in made}
    return Capture(
        name,
        graph,
        arguments,
        results,
        inputs,
        outputs,
        symbols,
        program.call_spec.in_spec,
        program.call_spec.out_spec,
        parameters if parameters is not None else _parameters_of(program),
        weights,
        frozenset(weights) - frozenset(program.state_dict),
        frozenset(state),
        training,
        program,
        {n: by_name[n.name] for n in program.graph.nodes if n.name in by_name},
    )


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """A module whose graph may be changed; names and metadata stay."""
    graph = fx.Graph()
    output = graph.graph_copy(module.graph, {}, return_output_node=True)
    assert isinstance(output, tuple)
    made = graph.output(output[0])
    made.meta = dict(output[1].meta)
    return fx.GraphModule(module, graph)


def _user_placeholders(placeholders: list[fx.Node], signature: Any) -> list[fx.Node]:
    return [n for n, s in zip(placeholders, signature.input_specs, strict=True) if s.kind is InputKind.USER_INPUT]


def _weight(program: ExportedProgram, name: str) -> torch.Tensor:
    found: torch.Tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
    return found


def _input(value: Any, names: SymbolNames) -> Any:
    """What an input has to be: dtype and sizes, or a constant."""
    if isinstance(value, torch.SymInt):
        expression = value.node.expr
        return Constant(int(expression)) if expression.is_Integer else ("int", names[str(expression)])
    if not isinstance(value, torch.Tensor):
        return Constant(value)
    sizes = tuple(n if not isinstance(n, torch.SymInt) else expression_text(n.node.expr, names) for n in value.shape)
    return (value.dtype, sizes)


def _output(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, fx.Node):
        size = value.meta["val"]
        if isinstance(size, torch.SymInt) and not size.node.expr.is_Integer:
            return SizeExpression(size.node.hint, expression_text(size.node.expr, names))
        return Constant(int(size) if isinstance(size, torch.SymInt) else size)
    return Constant(value)


def _parameters_of(program: ExportedProgram) -> list[inspect.Parameter]:
    """Parameters of an exported program, which keeps their names, and which are given by name, and no defaults."""
    args, kwargs = program.call_spec.in_spec.children()
    signature = program.module_call_graph[0].signature
    known = (signature.forward_arg_names if signature is not None else None) or ()
    count = len(args.children())
    names = [*known[:count], *(f"arg{i}" for i in range(len(known[:count]), count))]
    if len(set(names)) < count or set(names) & set(kwargs.context):
        names = [f"arg{i}" for i in range(count)]
    return [
        *(inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names),
        *(inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in kwargs.context),
    ]
