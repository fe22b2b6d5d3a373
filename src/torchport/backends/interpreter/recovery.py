"""Running a graph node by node: what failed and what needs it is marked, everything else is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchport.backend.data import BackendData
from torchport.backend.device import BackendDevice
from torchport.backends.interpreter.layout import concrete, resolved, result_maker
from torchport.backends.interpreter.schedule import Schedule
from torchport.backends.interpreter.values import Values
from torchport.errors import ExecutionError
from torchport.ir.node import Node


def failure(node: Node, error: Exception) -> ExecutionError:
    """The error of a node that failed: the operator and its operands, the user's line, what torch said."""
    where = f", traced at {node.location}," if node.location is not None else ""
    shapes = ", ".join(map(repr, node.call.inputs))
    found = ExecutionError(f"{node.call.name}({shapes}){where} failed: {error}")
    found.__cause__ = error
    return found


def run_node_by_node(
    values: Values, plan: Schedule, arguments: Sequence[BackendData], device: BackendDevice
) -> list[BackendData]:
    """The results; those that cannot be computed have an ``error`` and no handle.

    Nothing runs in place, so the arguments keep their values whatever happens.
    """
    found: dict[int, Any] = {}
    for value, parameter in values.parameters.items():
        argument = arguments[parameter]
        found[value] = argument.handle if argument.error is None else argument.error
    tensors = len(values.parameters)
    numbers = [a.handle for a in arguments[tensors:]]
    left = {v: len(positions) for v, positions in values.uses.items()}
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._DisableAutocast(),
    ):
        for node in values.order:
            outputs = zip(values.outputs_of(node), _outputs(values, node, found, numbers), strict=True)
            found.update((v, output) for v, output in outputs if v in left or v in values.result_count)
            for v in set(values.operands[node]):
                left[v] -= 1
                if not left[v] and v not in values.result_count:
                    del found[v]
        return [_result(values, plan, r, found, arguments, device) for r in range(len(values.results))]


def _outputs(values: Values, node: int, found: dict[int, Any], numbers: list[Any]) -> Sequence[Any]:
    step = values.steps[node]
    assert step is not None
    operands = [found[v] for v in values.operands[node]]
    spoilt = next((x for x in operands if isinstance(x, BaseException)), None)
    count = len(values.outputs_of(node))
    if spoilt is not None:
        return [spoilt] * count
    start = values.numbers_of[node] - values.count
    try:
        outputs = step.run(operands, numbers[start : start + len(values.graph.nodes[node].numbers)])
        return outputs[:count] if count else ()
    except Exception as error:  # noqa: BLE001 - a kernel may fail with any error; it is kept as the cause
        return [failure(values.graph.nodes[node], error)] * count


def _result(
    values: Values,
    plan: Schedule,
    result: int,
    found: dict[int, Any],
    arguments: Sequence[BackendData],
    device: BackendDevice,
) -> BackendData:
    if result in plan.returned and arguments[plan.returned[result]].error is None:
        return arguments[plan.returned[result]]
    value = values.results[result]
    node = values.graph.nodes[values.node_of[value]]
    shape = concrete(values.graph.results[result].shape)
    tensor = found[value]
    if isinstance(tensor, torch.Tensor):
        try:
            tensor = resolved(tensor)
            return result_maker(device)(tensor.clone() if result in plan.cloned else tensor, shape)
        except Exception as error:  # noqa: BLE001 - a copy may run out of memory; the error is kept as the cause
            tensor = failure(node, error)
    data = BackendData(device, shape)
    data.error = tensor if isinstance(tensor, BaseException) else failure(node, TypeError("it returned no tensor"))
    return data
