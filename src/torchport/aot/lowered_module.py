"""A module whose methods call a backend."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torchport.aot.arguments import Arguments, Results, number_expressions
from torchport.aot.execution import (
    Call,
    Fallback,
    MethodProgram,
    delegated,
    falling_back,
    unavailable,
    with_fallback,
)
from torchport.aot.explanation import explain_module
from torchport.aot.function import GraphFunction
from torchport.aot.method import Method
from torchport.backend.delegate import availability_of
from torchport.backend.delegates import Delegate
from torchport.errors import BackendNotAvailableError

FALLBACKS = ("error", "interpreter")


class LoweredModule(nn.Module):
    """What :func:`torchport.to_backend` and :func:`torchport.load` give.

    Each method of the compile spec is a method here, with the signature that it had. Weights and state are parameters
    and buffers under their names, copies of the module's; a call changes the state as the module would have.

    Calls compute no gradients. They are made one at a time where a method has state.

    Args:
        delegate: the backend.
        methods: by name.
        weights: every weight and state.
        fallback: ``"error"``, or ``"interpreter"`` to run there what the backend cannot.
        require: whether a missing backend is an error now (on a target); else one when a method is called.

    Raises:
        BackendNotAvailableError: the backend is missing or cannot load a part, and ``require`` is set without fallback.
    """

    def __init__(
        self,
        delegate: Delegate,
        methods: Mapping[str, Method],
        weights: Mapping[str, torch.Tensor],
        fallback: str = "error",
        require: bool = False,
    ) -> None:
        super().__init__()
        self._delegate = delegate
        self._methods = dict(methods)
        self._fallback = fallback
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

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return self._delegate.name

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the lowered methods."""
        return tuple(self._methods)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``forward``, with the hooks that a module has where there are any."""
        if self._forward_hooks or self._forward_pre_hooks or "forward" not in self._functions:
            return super().__call__(*args, **kwargs)
        return self._functions["forward"](*args, **kwargs)

    def explain(self) -> str:
        """Which parts there are, what was refused and why, what crosses each boundary, which fallbacks happened."""
        return explain_module(self.backend, self._methods, self._fallbacks)

    def _part_calls(self, require: bool) -> dict[str, dict[str, Call]]:
        """How each part of each method is called, by the rules of availability."""
        name = self._delegate.name
        options = {f"{m.name}.{p}": m.options for m in self._methods.values() for p in m.parts}
        payloads = {f"{m.name}.{p}": part.payload for m in self._methods.values() for p, part in m.parts.items()}
        reason = ""
        handles: dict[str, Any] = {}
        try:
            instance = self._delegate.instance
            available = availability_of(name, instance)
            reason = "" if available else available.reason
        except BackendNotAvailableError as error:
            reason = error.reason
        if not reason:
            handles, reasons = self._handles(payloads, options, require)
        else:
            reasons = dict.fromkeys(payloads, reason)
            if require and self._fallback == "error" and payloads:
                raise BackendNotAvailableError(name, reason)
        calls: dict[str, dict[str, Call]] = {m: {} for m in self._methods}
        for method in self._methods.values():
            for p, part in method.parts.items():
                full = f"{method.name}.{p}"
                label = f"{name} {full}"
                can_fall_back = self._fallback == "interpreter" and part.graph is not None
                if full in handles:
                    count = len(next(n for n in method.graph.nodes if n.call.args[:1] == (p,)).outputs)
                    call = delegated(label, self._delegate.instance, handles[full], count)
                    if can_fall_back and part.graph is not None:
                        call = with_fallback(label, call, part.graph, self._fallbacks)
                elif can_fall_back and part.graph is not None:
                    call = falling_back(label, reasons[full], part.graph, self._fallbacks)
                else:
                    call = unavailable(full, name, reasons[full])
                calls[method.name][p] = call
        return calls

    def _handles(
        self, payloads: Mapping[str, Any], options: Mapping[str, Any], require: bool
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The compiled parts, and the reasons of those that the backend cannot load; one that fails falls alone."""
        instance = self._delegate.instance
        try:
            return dict(instance.compile(payloads, options)), {}
        except Exception as error:
            if self._fallback == "error":
                raise BackendNotAvailableError(
                    self._delegate.name, f"its compile() raised {type(error).__name__}: {error}"
                ) from error
        handles: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        for full, payload in payloads.items():
            try:
                handles[full] = instance.compile({full: payload}, {full: options[full]})[full]
            except Exception as error:  # noqa: BLE001 - whatever a backend raises is the reason
                reasons[full] = f"its compile() raised {type(error).__name__}: {error}"
        return handles, reasons


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

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._module.training is not self._method.training and not self._warned:
            self._warn()
        if self._lock is None:
            return self._run(args, kwargs)
        with self._lock:
            return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
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
