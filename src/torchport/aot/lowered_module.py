"""A module whose methods call a backend."""

from __future__ import annotations

import copy
import functools
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
from torchport.aot.writable import check_writable
from torchport.errors import SavedFileError
from torchport.ir.call import PARTITION
from torchport.ir.facts import facts_of_call

FALLBACKS = ("error", "interpreter")


class LoweredModule(nn.Module):
    """What :func:`torchport.to_backend` and :func:`torchport.load` give.

    Each method of the compile spec is a method here, with the signature that it had. Weights and state are parameters
    and buffers under their names, copies of the module's; a call changes the state as the module would have, and uses
    the weights that are there when it is made.

    Calls compute no gradients. They are made one at a time where methods read or change state.

    Args:
        backend: the name of the backend that it was lowered to.
        methods: by name.
        weights: every weight and state.
        fallback: ``"error"``, or ``"interpreter"`` to run there what the backend cannot.
        require: whether a missing backend is an error now (on a target); else one when a method is called.
        passing: the names of those weights that are not in ``state_dict``.

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
        passing: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.backend = backend
        self._methods = dict(methods)
        self.fallback = fallback
        self._fallbacks: list[Fallback] = []
        for name, tensor in weights.items():
            _register(self, name, tensor, name not in passing)
        self._passing = passing
        self._forms = {name: (tensor.dtype, tensor.shape) for name, tensor in weights.items()}
        self.train(any(m.training for m in methods.values()))
        self._turns = Turns()
        written = {id(weights[w]) for m in methods.values() for kind, w in m.results if kind == "state"}
        state = frozenset(name for name, tensor in weights.items() if id(tensor) in written)
        calls = self._part_calls(require)
        self._functions: dict[str, GraphFunction] = {}
        for name, method in methods.items():
            function = GraphFunction(method, _Runner(self, method, calls[name], state))
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

    @property
    def _weights(self) -> dict[str, torch.Tensor]:
        """The weights and state as they are now: those of the methods, then parameters and buffers that were added."""
        now: dict[str, torch.Tensor] = dict(self.named_parameters(remove_duplicate=False))
        now.update(self.named_buffers(remove_duplicate=False))
        added = [n for n, t in self.state_dict(keep_vars=True).items() if n not in self._forms and n in now]
        return {name: now[name] for name in (*self._forms, *added) if name in now}

    def own_attributes(self) -> dict[str, Any]:
        """What was set on it after it was lowered."""
        return {k: v for k, v in self.__dict__.items() if k not in self._made and k != "_made"}

    def has_itself(self, name: str) -> bool:
        """Whether an attribute of this name is a lowered module's own, and not one that can be set on it and saved."""
        return name in self._made or name == "_made" or hasattr(type(self), name)

    def __copy__(self) -> LoweredModule:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredModule:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses to be pickled.

        Raises:
            SavedFileError: always; it says what saves.
        """
        raise SavedFileError(
            "a lowered module cannot be pickled, which torch.save and multiprocessing do: write it with .save(path), "
            "and read it with torchport.load(path). Its weights alone are in .state_dict(), which torch.save takes."
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file, whole or not at all, between two calls: :func:`torchport.aot.saving.save`."""
        with self._turns.lock:
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
                    to_load = PartToLoad(part.payload, method.options, facts_of_call(node), graph)
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


class Turns:
    """What methods with state take turns by; a copy of a module has another."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Turns:
        return Turns()


class _Runner:
    """Runs one method: from arguments to results."""

    def __init__(self, module: LoweredModule, method: Method, calls: Mapping[str, Call], state: frozenset[str]) -> None:
        self._module = module
        self._method = method
        self._arguments = Arguments(method)
        self._results = Results(method)
        self._program = MethodProgram(method.graph, calls)
        self._numbers = number_expressions(method, self._program.numbers)
        self._sources = tuple(method.arguments)
        # For each tensor what it is found in (None: the inputs), and where; so a weight that is replaced is found too.
        self._reads: tuple[tuple[Any, Any], ...] = tuple(
            (None, w) if kind == "user" else _place(module, w) for kind, w in method.arguments
        )
        self._writes: tuple[tuple[int, Any, Any], ...] = tuple(
            (i, *((None, w) if kind == "input" else _place(module, w)))
            for i, (kind, w) in enumerate(method.results)
            if kind != "user"
        )
        self._written_inputs = tuple(w for kind, w in method.results if kind == "input")
        self._user = tuple(i for i, (kind, _) in enumerate(method.results) if kind == "user")
        touched = {w for kind, w in (*method.arguments, *method.results) if kind in ("weight", "state")}
        self._turns = module._turns if touched & state else None
        self._warned = False
        self._inner: Inner | None = None
        self._key = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Runner:
        """The same of a copied module: weights, state and turns are that one's, what never changes is shared."""
        made = copy.copy(self)
        memo[id(self)] = made
        for name in ("_module", "_reads", "_writes", "_turns"):
            setattr(made, name, copy.deepcopy(getattr(self, name), memo))
        made._inner = None
        return made

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._module.training is not self._method.training and not self._warned:
            self._warn()
        if self._turns is None:
            return self._run(args, kwargs)
        with self._turns.lock:
            return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if torch.compiler.is_exporting():
            return self._captured(args, kwargs)
        leaves = self._arguments.flatten(args, kwargs)
        symbols = self._arguments.symbols(leaves)
        self._arguments.check(leaves, symbols)
        if self._written_inputs:
            self._arguments.check_apart(leaves, self._written_inputs)
            check_writable(self._method.name, leaves, self._written_inputs)
        inputs = [leaves[where] if store is None else store[where] for store, where in self._reads]
        inputs += [n(symbols) if callable(n) else n for n in self._numbers]
        with torch.no_grad():
            results = self._program(inputs)
            for i, store, where in self._writes:
                (leaves[where] if store is None else store[where]).copy_(results[i])
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
        tensors = [leaves[where] if store is None else store[where] for store, where in self._reads]
        results = call_inner(tensors, self._key)
        for i, store, where in self._writes:
            (leaves[where] if store is None else store[where]).copy_(results[i])
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


def _place(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """What a parameter or buffer is found in, and its name there."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    return owner._parameters if last in owner._parameters else owner._buffers, last


def _register(module: nn.Module, name: str, tensor: torch.Tensor, is_persistent: bool) -> None:
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
        module.register_buffer(last, tensor, is_persistent)


@functools.cache
def _own_names() -> frozenset[str]:
    return frozenset(dir(LoweredModule)) | frozenset(vars(LoweredModule("interpreter", {}, {})))


def has_of_its_own(name: str) -> bool:
    """Whether every lowered module has an attribute of this name, so that no method or weight can have it."""
    return name in _own_names()
