"""From a graph of the IR to the ``torch.fx`` graph that a compiler is given: its operators, and tensors only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from torchport.backend.compiler.draws import dropout_draws, dropout_of
from torchport.backend.compiler.foreach import per_tensor, single_operator
from torchport.backend.compiler.inputs import Inputs
from torchport.backend.compiler.numbers import NumberInput, call_with_inputs
from torchport.ir.call import Call
from torchport.ir.fx import to_fx
from torchport.ir.graph import Graph

_aten = torch.ops.aten
_TRACING = threading.RLock()
"""PyTorch's tracer patches modules while it runs, so two threads must not trace at once."""
Decompositions = Mapping[OpOverload, Callable[..., Any]]


def retrace(graph: Graph, inputs: Inputs, decompositions: Decompositions) -> fx.GraphModule:
    """The graph as the compiler is given it.

    Args:
        graph: of functional ATen operators.
        inputs: how its arguments become inputs.
        decompositions: what the compiler does not take, written in what it takes.

    Returns:
        A module that takes ``inputs.shapes`` and returns a tuple of the results. ``meta["val"]`` holds fake tensors on
        the CPU, ``meta["stack_trace"]`` the user's line.
    """
    runner = _Runner(graph, inputs)
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    with mode:
        fakes = [torch.empty_strided(s.sizes, s.strides, dtype=s.dtype, device="cpu") for s in inputs.shapes]

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: tuple[torch.Tensor, ...] = runner.run_with(values)
        return results

    with _TRACING, mode, preserve_node_meta(), torch.no_grad(), _plain_torch():
        module: fx.GraphModule = make_fx(run, dict(decompositions), tracing_mode="real")(*fakes)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


@contextlib.contextmanager
def _plain_torch() -> Iterator[None]:
    """Without what a program may have set for its own tensors: a default device, a default dtype, modes of its own."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


class _Runner(fx.Interpreter):
    """Calls the operators of a graph, while they are traced."""

    def __init__(self, graph: Graph, inputs: Inputs) -> None:
        super().__init__(to_fx(graph))
        self._inputs = inputs
        self._graph = graph
        self._number_types = [type(n.numbers[i]) for n, i in graph.numbers]
        self._calls = _calls_by_position(graph)

    def run_with(self, values: Sequence[torch.Tensor]) -> Any:
        left = list(values)
        tensors = [left.pop(0) for _ in self._inputs.tensors]
        numbers: dict[int, Any] = dict(self._inputs.constants)
        for positions in (self._inputs.floats, self._inputs.integers):
            if positions:
                vector = left.pop(0)
                for k, position in enumerate(positions):
                    kind = self._number_types[position]
                    element = _aten.select.int(vector, 0, k)
                    numbers[position] = NumberInput(element.to(torch.bool) if kind is bool else element, kind)
        self._draws = iter(left)
        self._random = iter(self._calls)
        return self.run(*tensors, *[numbers.get(i) for i in range(len(self._number_types))])

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function" and isinstance(n.target, OpOverload):
            with self._set_current_node(n):
                args, kwargs = self.fetch_args_kwargs_from_env(n)
                return self._call(n, n.target, args, kwargs)
        return super().run_node(n)

    def _call(self, n: fx.Node, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        val = n.meta.get("val")
        if torch.Tag.nondeterministic_seeded in op.tags and self._is_drawn(op):
            return self._drawn(next(self._random), args)
        if single_operator(op) is not None:
            dtypes = iter([v.dtype for v in val or ()])
            return per_tensor(op, args, kwargs, lambda single, a, k: _apply(single, a, k, next(dtypes)))
        return _apply(op, args, kwargs, val.dtype if isinstance(val, torch.Tensor) else None)

    def _is_drawn(self, op: OpOverload) -> bool:
        return any(c.op is op for c in self._calls)

    def _drawn(self, call: Call, args: tuple[Any, ...]) -> Any:
        if call.op is _aten.native_dropout.default:
            return dropout_of(call, args[0], next(self._draws) if dropout_draws(call) else None)
        results = [next(self._draws) for _ in call.outputs]
        return results[0] if len(results) == 1 else results


def _calls_by_position(graph: Graph) -> list[Call]:
    return [n.call for n in graph.nodes if n.call.is_random]


def _apply(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], out: torch.dtype | None) -> Any:
    if op is _aten.scalar_tensor.default and isinstance(args[0], NumberInput):
        return args[0].tensor.to(kwargs["dtype"])
    if any(isinstance(a, NumberInput) for a in (*args, *kwargs.values())):
        return call_with_inputs(op, args, kwargs, out)
    return op(*args, **kwargs)
