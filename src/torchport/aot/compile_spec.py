"""What to capture of a module: for each method the arguments it is captured with, and the backend's options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchport.errors import CompileSpecError

_FORMAT = (
    'Give a dict of method names: {"forward": CompileSpec(args=(example, …), kwargs={…}, dynamic_shapes=…, options=…)}.'
)


@dataclass(frozen=True, slots=True)
class CompileSpec:
    """How one method is captured.

    Attributes:
        args: example positional arguments: a tuple. Shapes, dtypes and Python values are those of the capture.
        kwargs: example keyword arguments.
        dynamic_shapes: which sizes may vary, as for ``torch.export.export``.
        options: the backend's options for this method.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    options: Mapping[str, Any] | None = field(default=None)


def check_compile_specs(module: nn.Module, specs: object, backend: str) -> dict[str, CompileSpec]:
    """The compile specs of a module, by method.

    Raises:
        CompileSpecError: they are not of the form; every mistake is listed.
    """
    asked = f"to_backend({backend!r}, {type(module).__name__}, …)"
    if not isinstance(specs, Mapping) or not specs:
        found = "is empty" if isinstance(specs, Mapping) else f"is a {type(specs).__name__}"
        raise CompileSpecError(f"{asked}: the compile spec {found}. {_FORMAT}")
    wrong: list[str] = []
    for name, spec in specs.items():
        wrong += _mistakes(module, name, spec)
    if wrong:
        raise CompileSpecError("\n  ".join([f"{asked}: the compile spec has mistakes:", *wrong]) + f"\n{_FORMAT}")
    return dict(specs)


def _mistakes(module: nn.Module, name: object, spec: object) -> list[str]:
    if not isinstance(name, str) or not name.isidentifier():
        return [f"the key {name!r} is no name of a method"]
    method = getattr(module, name, None)
    if not callable(method):
        methods = [n for n, _ in inspect.getmembers(type(module), inspect.isfunction) if n not in _ALL_MODULES_HAVE]
        return [f"{name!r}: {type(module).__name__} has no such method; it has {', '.join(sorted(methods))}"]
    if not isinstance(spec, CompileSpec):
        return [f"{name!r}: a CompileSpec is wanted, not {type(spec).__name__}"]
    wrong = []
    if not isinstance(spec.args, tuple):
        wrong.append(f"{name!r}: args is a {type(spec.args).__name__}, not a tuple: write args=(x,)")
    for what in ("kwargs", "options"):
        value = getattr(spec, what)
        if value is not None and not (isinstance(value, Mapping) and all(isinstance(k, str) for k in value)):
            wrong.append(f"{name!r}: {what} is no mapping of names: {value!r:.80}")
    if not wrong and not isinstance(module, torch.jit.ScriptModule):  # those of a trace have no signature
        try:
            inspect.signature(method).bind(*spec.args, **(spec.kwargs or {}))
        except TypeError as error:
            wrong.append(f"{name!r}: the arguments do not fit {name}{inspect.signature(method)}: {error}")
    return wrong


_ALL_MODULES_HAVE = frozenset(dir(nn.Module)) - {"forward"}


def check_submodules(module: nn.Module, names: Sequence[str] | None, backend: str) -> list[str]:
    """The dotted names of the submodules to lower, each of which exists and lies in no other.

    Raises:
        CompileSpecError: some do not; all of them are listed.
    """
    known = dict(module.named_modules(remove_duplicate=False))
    wrong = []
    for name in names or ():
        if not name or name not in known:
            near = [k for k in known if k and k.rpartition(".")[2] == str(name).rpartition(".")[2]]
            wrong.append(
                f"{name!r} is no submodule" + (f"; did you mean {', '.join(map(repr, near[:3]))}?" if near else "")
            )
        elif any(other != name and name.startswith(f"{other}.") for other in names or ()):
            wrong.append(f"{name!r} is inside another submodule that is lowered")
    if names is not None and not names:
        wrong.append("the list is empty")
    if wrong:
        raise CompileSpecError(
            "\n  ".join([f"to_backend({backend!r}, {type(module).__name__}, submodules=…):", *wrong])
            + f"\nThe submodules are {', '.join(repr(k) for k in known if k) or 'none'}."
        )
    return list(names or ())
