"""Lowering a module to a backend."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from torchport.aot.capture import capture_all
from torchport.aot.captured import Capture
from torchport.aot.compile_spec import (
    FORMAT,
    CompileSpec,
    option_mistakes,
    spec_mistakes,
    submodule_mistakes,
    weight_mistakes,
)
from torchport.aot.lowered_module import FALLBACKS, LoweredModule
from torchport.aot.method import method_of
from torchport.aot.partitioning import plan_method
from torchport.backend import Support
from torchport.backend.delegate import DelegatedModule, availability_of
from torchport.backend.delegates import Delegate, find_delegate
from torchport.backend.options import options_of, split_name
from torchport.errors import BackendNotAvailableError, CompileSpecError
from torchport.ir.graph import Graph
from torchport.ir.node import Node


def to_backend(
    name: str,
    module: nn.Module | ExportedProgram | str | Path,
    method_compile_spec: Mapping[str, CompileSpec] | None = None,
    *,
    partition: bool = True,
    fallback: str = "error",
    submodules: Sequence[str] | None = None,
) -> LoweredModule:
    """The module, lowered to a backend. The module itself stays as it is.

    The lowered module has all weights of the module, also those that no method uses, so that a ``state_dict`` of the
    one fits the other. To leave weights out of a file, lower the submodule that is used.

    Args:
        name: the backend; also with options for all methods, as in ``iree{target_cpu=x86-64-v4}``.
        module: a module; an exported program or a ``.pt2`` file, whose one method is ``forward``.
        method_compile_spec: for each method to lower what it is captured with; of an exported program, which was
            captured already, ``{"forward": CompileSpec(options=…)}`` at most.
        partition: whether what the backend refuses runs in the interpreter; if not, it is an error that lists all.
        fallback: ``"error"``, or ``"interpreter"`` to keep the graphs and run them wherever the backend is missing,
            cannot load a part, or fails before it has a result.
        submodules: dotted names: only these are lowered, the rest runs in the interpreter.

    Raises:
        UnknownBackendError: there is no backend of that name.
        CompileSpecError: the compile spec or another argument is wrong; every mistake is listed.
        CaptureError: a method cannot be captured.
        UnsupportedNodesError: nodes are refused and ``partition`` is off.
    """
    if not isinstance(name, str):
        raise CompileSpecError(f"to_backend({name!r:.60}, …): the first argument is the name of a backend, a text")
    name, text = split_name(name)
    delegate = find_delegate(name)
    for_all = options_of(text)
    specs, inside = _checked(name, module, method_compile_spec, submodules, fallback)
    captures = capture_all(module, specs)
    _check(f"to_backend({name!r}, …)", weight_mistakes({w for c in captures.values() for w in c.weights}))
    available = _availability(delegate)
    made = delegate.instance if delegate.made is not None or available is None else None
    supports = made.supports if made is not None else _everything
    kept_whole = made.kept_whole if made is not None else _nothing
    plans = {m: plan_method(c, supports, partition, name, inside, kept_whole) for m, c in captures.items()}
    graphs = {f"{m}.{p}": graph for m, plan in plans.items() for p, graph in plan.parts.items()}
    options = {f"{m}.{p}": _options(specs, m, for_all) for m, plan in plans.items() for p in plan.parts}
    processed = delegate.preprocess(DelegatedModule(graphs), options)
    _check_processed(name, processed, graphs)
    methods = {
        m: method_of(
            captures[m],
            plans[m],
            name,
            {p: processed[f"{m}.{p}"] for p in plans[m].parts},
            _options(specs, m, for_all),
        )
        for m in captures
    }
    if available is not None and fallback == "error":
        warnings.warn(
            f"Backend not available here: {name!r}: {available}. The module can be saved, and compiled and run where "
            "the backend is; calling it here raises BackendNotAvailableError.",
            UserWarning,
            stacklevel=2,
        )
    passing = frozenset(w for c in captures.values() for w in c.passing)
    return LoweredModule(name, methods, _copied_weights(captures), fallback, passing=passing)


def _checked(
    name: str, module: object, specs: object, submodules: Sequence[str] | None, fallback: object
) -> tuple[dict[str, CompileSpec], list[str]]:
    asked = f"to_backend({name!r}, {type(module).__name__}, …)"
    wrong = [] if fallback in FALLBACKS else [f"fallback={fallback!r}: the legal values are 'error' and 'interpreter'"]
    if isinstance(module, nn.Module):
        of_specs, of_submodules = spec_mistakes(module, specs), submodule_mistakes(module, submodules)
        weights = [n for n, _ in (*module.named_parameters("", True, False), *module.named_buffers("", True, False))]
        known = ", ".join(repr(k) for k, _ in module.named_modules(remove_duplicate=False) if k)
        _check(
            asked,
            [*wrong, *of_specs, *of_submodules, *weight_mistakes(set(weights))],
            *([FORMAT] if of_specs else []),
            *([f"The submodules are {known or 'none'}."] if of_submodules else []),
        )
        return dict(specs), list(submodules or ())  # type: ignore[call-overload]
    if not isinstance(module, ExportedProgram | str | Path):
        found = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        wrong.append(
            f"{found} cannot be lowered; give a torch.nn.Module, an ExportedProgram (torch.export.export) or the path "
            "of a .pt2 file"
        )
        _check(f"to_backend({name!r}, …)", wrong)
    given = dict(specs) if isinstance(specs, Mapping) else {"": specs} if specs else {}
    options = {m: CompileSpec(options=s.options) for m, s in given.items() if isinstance(s, CompileSpec)}
    if submodules or given != options or set(given) - {"forward"}:
        wrong.append(
            "an exported program was captured already, so it takes no submodules and no compile spec but "
            '{"forward": CompileSpec(options=…)}'
        )
    _check(asked, wrong + [mistake for m, spec in options.items() for mistake in option_mistakes(m, spec.options)])
    return options, []


def _check(asked: str, wrong: Sequence[str], *hints: str) -> None:
    if wrong:
        raise CompileSpecError("\n".join(["\n  ".join([f"{asked}:", *wrong]), *hints]))


def _availability(delegate: Delegate) -> str | None:
    """Why the backend is missing here; ``None`` when it is not."""
    try:
        answer = availability_of(delegate.name, delegate.instance)
    except BackendNotAvailableError as error:
        return error.reason
    return None if answer else answer.reason


def _everything(node: Node) -> Support:
    return Support(True)


def _nothing(graph: Graph) -> Sequence[Sequence[Node]]:
    return ()


def _options(specs: Mapping[str, CompileSpec], method: str, for_all: Mapping[str, str]) -> Mapping[str, Any] | None:
    own = specs[method].options if method in specs else None
    return {**for_all, **(own or {})} if for_all else own


def _check_processed(name: str, processed: object, graphs: Mapping[str, Any]) -> None:
    if not isinstance(processed, Mapping) or set(processed) != set(graphs):
        found = sorted(processed) if isinstance(processed, Mapping) else type(processed).__name__
        raise TypeError(
            f"the preprocess function of {name!r} has to return bytes for each graph, {sorted(graphs)}; it returned "
            f"{found}"
        )


def _copied_weights(captures: Mapping[str, Capture]) -> dict[str, torch.Tensor]:
    """One copy of every weight, tied ones tied, parameters as parameters."""
    copies: dict[tuple[Any, ...], torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for capture in captures.values():
        for name, tensor in capture.weights.items():
            if name in found:
                continue
            key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
            if key not in copies:
                copy = tensor.detach().cpu().clone()
                is_parameter = isinstance(tensor, nn.Parameter)
                copies[key] = nn.Parameter(copy, requires_grad=False) if is_parameter else copy
            found[name] = copies[key]
    return found
