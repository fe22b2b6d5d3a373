"""A module whose methods call a backend."""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torchport.aot.arguments import Arguments, Results, number_expressions
from torchport.aot.execution import Call, Fallback, MethodProgram
from torchport.aot.explanation import explain_module
from torchport.aot.function import GraphFunction
from torchport.aot.loading import LoadedParts, PartToLoad
from torchport.aot.method import Method
from torchport.aot.nesting import Inner, call_inner, register_inner
from torchport.aot.saving import save
from torchport.ir.call import PARTITION

FALLBACKS = ("error", "interpreter")


class LoweredModule(nn.Module):
    """What :func:`torchport.to_backend` and :func:`torchport.load` give.

    Each method of the compile spec is a method here, with the signature that it had. Weights and state are parameters
    and buffers under their names, copies of the module's; a call changes the state as the module would have.

    Calls compute no gradients. They are made one at a time where a method has state.

    Args:
        backend: the name of the backend that it was lowered to.
        methods: by name.
        weights: every weight and state.
        fallback: ``"error"``, or ``"interpreter"`` to run there what the backend cannot.
        require: whether a missing backend is an error now (on a target); else one when a method is called.

    Raises:
        BackendNotAvailableError: the backend is missing or cannot load a part, and ``require`` is set without fallback.
    """

    def __init__(
        self,
        backend: str,
        methods: Mapping[str, Method],
        weights: Mapping[str, torch.Tensor],
        fallback: str = "error",
        require: bool = False,
    ) -> None:
        super().__init__()
        self.backend = backend
        self._methods = dict(methods)
        self.fallback = fallback
        self._fallbacks: list[Fallback] = []
        self._weights = dict(weights)
        for name, tensor in weights.items():
            _register(self, name, tensor)
        self.train(any(m.training for m in methods.values()))
        lock = threading.RLock()
        calls = self._part_calls(require)
        self._functions: dict[str, GraphFunction] = {}
        for name, method in methods.items():
            function = GraphFunction(method, _Runner(self, method, calls[name], lock))
            self._functions[name] = function
            self.__dict__[name] = function
        self._made = frozenset(self.__dict__)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the lowered methods."""
        return tuple(self._methods)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``forward``, with the hooks that a module has where there are any."""
        if self._forward_hooks or self._forward_pre_hooks or "forward" not in self._functions:
            return super().__call__(*args, **kwargs)
        return self._functions["forward"](*args, **kwargs)

    def own_attributes(self) -> dict[str, Any]:
        """What was set on it after it was lowered."""
        return {k: v for k, v in self.__dict__.items() if k not in self._made and k != "_made"}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file, whole or not at all: :func:`torchport.aot.saving.save`."""
        save(self, path)

    def explain(self) -> str:
        """Which parts there are, what was refused and why, what crosses each boundary, which fallbacks happened."""
        return explain_module(self.backend, self._methods, self._fallbacks)

    def _part_calls(self, require: bool) -> dict[str, dict[str, Call]]:
        """How each part of each method is called, by the rules of availability."""
        parts: dict[str, dict[str, PartToLoad]] = {}
        for method in self._methods.values():
            for node in method.graph.nodes:
                if node.op is PARTITION:
                    part = method.parts[node.call.args[0]]
                    graph = part.graph if self.fallback == "interpreter" else None
                    to_load = PartToLoad(part.payload, method.options, len(node.outputs), graph)
                    parts.setdefault(part.backend, {})[f"{method.name}.{node.call.args[0]}"] = to_load
        remedy = "its graph was not saved: lower it with fallback='interpreter'" if self.fallback != "error" else ""
        loaded = {backend: LoadedParts(backend, own, require, remedy) for backend, own in parts.items()}
        return {
            method.name: {
                name: loaded[part.backend].call(f"{method.name}.{name}", self._fallbacks)
                for name, part in method.parts.items()
            }
            for method in self._methods.values()
        }


class _Runner:
    """Runs one method: from arguments to results."""

    def __init__(self, module: LoweredModule, method: Method, calls: Mapping[str, Call], lock: threading.RLock) -> None:
        self._module = module
        self._method = method
        self._arguments = Arguments(method)
        self._results = Results(method)
        self._program = MethodProgram(method, calls)
        self._numbers = number_expressions(method, self._program.numbers)
        self._sources = tuple(method.arguments)
        self._weights = module._weights
        self._writes = [(i, kind, where) for i, (kind, where) in enumerate(method.results) if kind != "user"]
        self._user = tuple(i for i, (kind, _) in enumerate(method.results) if kind == "user")
        self._lock = lock if any(kind == "state" for kind, _ in method.results) else None
        self._warned = False
        self._inner: Inner | None = None
        self._key = ""

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._module.training is not self._method.training and not self._warned:
            self._warn()
        if self._lock is None:
            return self._run(args, kwargs)
        with self._lock:
            return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if torch.compiler.is_exporting():
            return self._captured(args, kwargs)
        leaves = self._arguments.flatten(args, kwargs)
        symbols = self._arguments.symbols(leaves)
        self._arguments.check(leaves, symbols)
        weights = self._weights
        inputs = [leaves[where] if kind == "user" else weights[where] for kind, where in self._sources]
        inputs += [n(symbols) if callable(n) else n for n in self._numbers]
        with torch.no_grad():
            results = self._program(inputs)
            for i, kind, where in self._writes:
                (leaves[where] if kind == "input" else weights[where]).copy_(results[i])
        return self._results.unflatten([results[i] for i in self._user], symbols)

    def _captured(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The results inside a capture of another module."""
        leaves = self._arguments.flatten(args, kwargs)
        symbols = self._arguments.symbols(leaves)
        if self._inner is None:
            positions = {leaf: i for i, (kind, leaf) in enumerate(self._sources) if kind == "user"}
            self._inner = Inner(
                self._method.graph,
                self._method.parts,
                {n: (positions[s.leaf], s.dim) for n, s in self._method.symbols.items() if s.dim is not None},
                self._numbers_of,
                self._program,
            )
            self._key = register_inner(self._inner)
        weights = dict(self._module.named_buffers()) | dict(self._module.named_parameters())
        tensors = [leaves[where] if kind == "user" else weights[where] for kind, where in self._sources]
        results = call_inner(tensors, self._key)
        for i, kind, where in self._writes:
            (leaves[where] if kind == "input" else weights[where]).copy_(results[i])
        return self._results.unflatten([results[i] for i in self._user], symbols)

    def _numbers_of(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        assert self._inner is not None
        symbols = [tensors[i].shape[dim] for i, dim in self._inner.symbols.values()]
        return [n(symbols) if callable(n) else n for n in self._numbers]

    def _warn(self) -> None:
        self._warned = True
        was, now = ("training", "evaluation") if self._method.training else ("evaluation", "training")
        warnings.warn(
            f"{self._method.name} was captured in {was} mode and runs so; the module is in {now} mode now. Lower it in "
            f"{now} mode too, or call .{'train' if self._method.training else 'eval'}().",
            UserWarning,
            stacklevel=5,
        )


def _register(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """A parameter or buffer under its dotted name, with the modules between."""
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        inner = module._modules[part]
        assert inner is not None
        module = inner
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(last, tensor)
    else:
        module.register_buffer(last, tensor)


def signature_of(method: Method) -> inspect.Signature:
    """The signature of a method."""
    return inspect.Signature(method.parameters)
