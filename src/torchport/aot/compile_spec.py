"""What to capture of a module: for each method the arguments it is captured with, and the backend's options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchport.aot.lowered_module import has_of_its_own
from torchport.aot.saving import is_json
from torchport.aot.signatures import obstacle

FORMAT = (
    'Give a dict of method names: {"forward": CompileSpec(args=(example, …), kwargs={…}, dynamic_shapes=…, options=…)}.'
)


@dataclass(frozen=True, slots=True)
class CompileSpec:
    """How one method is captured.

    Attributes:
        args: example positional arguments: a tuple. Shapes, dtypes and Python values are those of the capture.
        kwargs: example keyword arguments.
        dynamic_shapes: which sizes may vary, as for ``torch.export.export``.
        options: the backend's options for this method: numbers, texts, lists and dicts, since they are saved.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    options: Mapping[str, Any] | None = field(default=None)


def spec_mistakes(module: nn.Module, specs: object) -> list[str]:
    """Everything that is wrong with the compile specs of a module."""
    if not isinstance(specs, Mapping) or not specs:
        return [f"the compile spec {'is empty' if isinstance(specs, Mapping) else f'is a {type(specs).__name__}'}"]
    return [mistake for name, spec in specs.items() for mistake in _mistakes(module, name, spec)]


def option_mistakes(method: str, options: object) -> list[str]:
    """Everything that is wrong with a backend's options."""
    if options is None:
        return []
    if not (isinstance(options, Mapping) and all(isinstance(k, str) for k in options)):
        return [f"{method!r}: options is no mapping of names: {options!r:.80}"]
    return [
        f"{method!r}: options[{key!r}] is a {type(value).__name__}: {value!r:.60}; numbers, texts, lists and dicts of "
        "them are saved"
        for key, value in options.items()
        if not is_json(value)
    ]


def _mistakes(module: nn.Module, name: object, spec: object) -> list[str]:
    if not isinstance(name, str) or not name.isidentifier():
        return [f"the key {name!r} is no name of a method"]
    method = getattr(module, name, None)
    if isinstance(method, nn.Module):
        return [f"{name!r} is a submodule, no method: give the submodule itself, or submodules=[{name!r}] with forward"]
    if not callable(method):
        return [f"{name!r}: {type(module).__name__} has no such method; it has {', '.join(_own_methods(module))}"]
    if name != "forward" and has_of_its_own(name):
        return [
            f"{name!r}: a lowered module has an attribute of this name itself, so it can have no such method; wrap "
            f"what you want to lower in a method of another name. {type(module).__name__} has "
            f"{', '.join(_own_methods(module))}."
        ]
    if not isinstance(spec, CompileSpec):
        return [f"{name!r}: a CompileSpec is wanted, not {type(spec).__name__}"]
    wrong = []
    if not isinstance(spec.args, tuple):
        wrong.append(f"{name!r}: args is a {type(spec.args).__name__}, not a tuple: write args=(x,)")
    if spec.kwargs is not None and not (
        isinstance(spec.kwargs, Mapping) and all(isinstance(k, str) for k in spec.kwargs)
    ):
        wrong.append(f"{name!r}: kwargs is no mapping of names: {spec.kwargs!r:.80}")
    if not wrong and not isinstance(module, torch.jit.ScriptModule):  # those of a trace have no signature
        wrong += _argument_mistakes(name, method, spec)
    return wrong + option_mistakes(name, spec.options)


def _argument_mistakes(name: str, method: Callable[..., Any], spec: CompileSpec) -> list[str]:
    try:
        signature = inspect.signature(method)
    except ValueError:
        return [f"{name!r}: {method!r:.60} has no signature; wrap it in a method that has one"]
    why = obstacle(signature, spec.args, spec.kwargs or {})
    if why:
        return [f"{name!r}: the arguments do not fit {name}{signature}: {why}"]
    shapes, arguments = spec.dynamic_shapes, signature.bind(*spec.args, **(spec.kwargs or {})).arguments
    if isinstance(shapes, Mapping):
        pairs = [(arguments[k], shapes[k], f"dynamic_shapes[{k!r}]") for k in arguments if k in shapes]
    elif isinstance(shapes, list | tuple):
        values = zip(arguments.values(), shapes, strict=False)
        pairs = [(value, of, f"dynamic_shapes[{i}]") for i, (value, of) in enumerate(values)]
    elif shapes is None or hasattr(shapes, "dynamic_shapes"):  # torch.export.ShapesCollection, AdditionalInputs
        return []
    else:
        return [
            f"{name!r}: dynamic_shapes is a {type(shapes).__name__}; a tuple or a dict with one entry for each argument"
        ]
    return [f"{name!r}: {mistake}" for pair in pairs for mistake in _shape_mistakes(*pair)]


def _shape_mistakes(value: Any, shapes: Any, path: str) -> list[str]:
    """Dimensions that an example argument does not have, which torch answers with an ``IndexError`` or worse.

    Args:
        value: an example argument, or what is nested in it.
        shapes: its ``dynamic_shapes``.
        path: what they are called in messages.
    """
    if isinstance(value, torch.Tensor):
        if isinstance(shapes, Mapping):
            wrong = [d for d in shapes if type(d) is not int or not -value.dim() <= d < value.dim()]
            return [f"{path}: {d!r} is no dimension of a tensor of size {list(value.shape)}" for d in wrong]
        if isinstance(shapes, list | tuple) and len(shapes) != value.dim():
            return [f"{path}: {len(shapes)} sizes are given of a tensor of size {list(value.shape)}"]
        return []
    if isinstance(value, Mapping) and isinstance(shapes, Mapping):
        pairs = [(value[k], shapes[k], f"{path}[{k!r}]") for k in value if k in shapes]
    elif isinstance(value, list | tuple) and isinstance(shapes, list | tuple):
        pairs = [(v, s, f"{path}[{i}]") for i, (v, s) in enumerate(zip(value, shapes, strict=False))]
    else:
        return []
    return [mistake for pair in pairs for mistake in _shape_mistakes(*pair)]


def _own_methods(module: nn.Module) -> list[str]:
    """The methods that are not those of every module."""
    of_all = frozenset(dir(nn.Module)) - {"forward"}
    found = {name: getattr(type(module), name, None) for name in dir(type(module))} | vars(module)
    return sorted(
        name
        for name, value in found.items()
        if name not in of_all and callable(value) and not isinstance(value, type) and not name.startswith("__")
    )


def weight_mistakes(names: set[str]) -> list[str]:
    """The names of weights, submodules among them, that a lowered module has for something else."""
    wrong = sorted({name.partition(".")[0] for name in names if has_of_its_own(name.partition(".")[0])})
    if not wrong:
        return []
    return [
        f"a lowered module has attributes of its own that are called {', '.join(map(repr, wrong))}; give the "
        "submodules, parameters or buffers that are called so other names before lowering"
    ]


def submodule_mistakes(module: nn.Module, names: object) -> list[str]:
    """Everything that is wrong with the dotted names of the submodules to lower."""
    if names is None:
        return []
    if isinstance(names, str) or not isinstance(names, list | tuple):
        hint = f"; write submodules=[{names!r}]" if isinstance(names, str) else ""
        return [f"submodules is a {type(names).__name__}, not a list of dotted names{hint}"]
    known = [name for name, _ in module.named_modules(remove_duplicate=False)]
    wrong = [] if names else ["the list of submodules is empty"]
    for name in names:
        if not name or name not in known:
            near = [k for k in known if k and k.rpartition(".")[2] == str(name).rpartition(".")[2]]
            wrong.append(
                f"{name!r} is no submodule" + (f"; did you mean {', '.join(map(repr, near[:3]))}?" if near else "")
            )
        elif any(other != name and name.startswith(f"{other}.") for other in names):
            wrong.append(f"{name!r} is inside another submodule that is lowered")
    return wrong
