"""The third door: ``torch.compile(model, backend="torchport", options={"backend": "xla"})``.

Found by the entry-point group ``torch_dynamo_backends``. AOTAutograd turns what Dynamo traced into functional graphs,
forward and backward; each is cut and compiled as a method of a lowered module is, and what a backend refuses runs in
the interpreter. A graph with symbolic sizes is compiled for each sizes that it is called with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torchport.aot.execution import MethodProgram, delegated
from torchport.aot.partitioning import plan_method
from torchport.backend.delegate import DelegatedModule, PyTorchBackendInterface, availability_of
from torchport.backend.delegates import find_delegate
from torchport.backend.options import split_name
from torchport.config import settings
from torchport.errors import BackendNotAvailableError, BackendOptionError
from torchport.ir.fx_import import import_fx
from torchport.ir.graph import Graph
from torchport.ir.node import Node

Compiled = Callable[..., list[Any]]


def compile_for_dynamo(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What ``torch.compile`` calls for each graph that Dynamo has traced.

    Args:
        module: the graph.
        example_inputs: fake or real tensors.
        options: ``{"backend": name}``, and the options of that backend by name.
        mode: not used by any backend.

    Raises:
        UnknownBackendError, BackendNotAvailableError: there is no such backend, or it cannot be used here.
        BackendOptionError: an option is wrong.
    """
    chosen = dict(options or {})
    name, text = split_name(str(chosen.pop("backend", settings.backend)))
    if mode is not None:
        raise BackendOptionError(f"torch.compile(…, mode={mode!r}): the backends of torchport have options, no modes")
    delegate = find_delegate(name).instance
    available = availability_of(name, delegate)
    if not available:
        raise BackendNotAvailableError(name, available.reason)
    given: Any = chosen or text or None

    def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        boxed = _PerSizes(graph, inputs, name, delegate, given)
        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    compiled: Callable[..., Any] = aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)(
        module, example_inputs
    )
    return compiled


class _PerSizes:
    """A graph of AOTAutograd, compiled for the sizes that it is called with."""

    def __init__(
        self,
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        name: str,
        delegate: PyTorchBackendInterface,
        options: Any,
    ) -> None:
        self._graph = graph
        self._name = name
        self._delegate = delegate
        self._options = options
        self._compiled: dict[Any, Compiled] = {}
        self._only: Compiled | None = None
        symbolic = any(isinstance(x, torch.SymInt) or _has_symbols(x) for x in inputs)
        if not symbolic:
            self._only = _compile(graph, name, delegate, options)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        taken = list(inputs)
        inputs.clear()  # the boxed convention: the callee owns them, so that they can be freed early
        if self._only is not None:
            return self._only(taken)
        sizes = tuple(x if isinstance(x, int) else tuple(x.shape) for x in taken)
        compiled = self._compiled.get(sizes)
        if compiled is None:
            compiled = _compile(_specialized(self._graph, taken), self._name, self._delegate, self._options)
            self._compiled[sizes] = compiled
        return compiled([x for x in taken if isinstance(x, torch.Tensor)])


def _has_symbols(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape)


def _specialized(graph: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph for tensors of these sizes, and without the integers that it takes."""
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x, static_shapes=True) for x in inputs if isinstance(x, torch.Tensor)]

    def run(*tensors: torch.Tensor) -> Any:
        left = iter(tensors)
        return graph(*[next(left) if isinstance(x, torch.Tensor) else x for x in inputs])

    with mode, torch.no_grad():
        made: fx.GraphModule = make_fx(run, tracing_mode="real")(*fakes)
    return made


@dataclass(frozen=True, slots=True)
class _Graph:
    name: str
    graph: Graph
    module: fx.GraphModule
    made: Mapping[fx.Node, Node]


def _compile(module: fx.GraphModule, name: str, delegate: PyTorchBackendInterface, options: Any) -> Compiled:
    module, constants, outputs = _tensors_only(module)
    graph, made = import_fx(module, {})
    plan = plan_method(_Graph("graph", graph, module, made), delegate.supports, True, name, (), delegate.kept_whole)
    parts = dict(plan.parts)
    handles = delegate.compile_here(DelegatedModule(parts), dict.fromkeys(parts, options))
    calls = {part: delegated(part, delegate, handles[part], len(parts[part].results)) for part in parts}
    run = MethodProgram(plan.graph, calls)
    numbers = run.numbers

    def compiled(inputs: list[Any]) -> list[Any]:
        made = run([*inputs, *constants, *numbers])
        return [made[x] if kind == "tensor" else x for kind, x in outputs]

    return compiled


def _tensors_only(module: fx.GraphModule) -> tuple[fx.GraphModule, list[torch.Tensor], list[tuple[str, Any]]]:
    """The module with its constants as further inputs, and with tensors as its only outputs.

    Returns:
        The module, the constants, and for each output ``("tensor", which)`` or ``("constant", value)``.
    """
    graph = fx.Graph()
    environment = graph.graph_copy(module.graph, {})
    made = fx.GraphModule(module, graph)
    constants: list[torch.Tensor] = []
    last = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), None)
    for node in graph.find_nodes(op="get_attr"):
        value = getattr(module, str(node.target))
        with graph.inserting_after(last) if last is not None else graph.inserting_before(next(iter(graph.nodes))):
            last = graph.placeholder(f"constant_{len(constants)}")
        last.meta["val"] = value
        constants.append(value)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    outputs: list[tuple[str, Any]] = []
    kept: list[fx.Node] = []
    flat = list(environment) if isinstance(environment, (list, tuple)) else [environment]
    for value in flat:
        if isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor):
            outputs.append(("tensor", len(kept)))
            kept.append(value)
        else:
            outputs.append(("constant", value.meta["val"] if isinstance(value, fx.Node) else value))
    graph.output(tuple(kept))
    graph.output_node().meta["val"] = tuple(n.meta["val"] for n in kept)
    graph.lint()
    made.recompile()
    return made, constants, outputs
