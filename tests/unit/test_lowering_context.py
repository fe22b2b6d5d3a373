"""Lowering: nodes in, a computation out, in both forms of the contract."""

from __future__ import annotations

import pytest
import torch

from support.eager_backend import EagerTestBackend
from torchport.backend import (
    BackendData,
    BackendDevice,
    BackendDeviceType,
    Computation,
    IrBuilder,
    LoweringContext,
    Node,
    Shape,
    SyncCause,
    Value,
)
from torchport.ir.call import Call, operand

DEVICE = BackendDevice(BackendDeviceType("CPU"))
F2 = Shape(torch.float32, (2,))


def data() -> BackendData:
    return BackendData(DEVICE, F2, torch.tensor([1.0, 2.0]))


def leaf(of: BackendData | None = None) -> Node:
    return IrBuilder().make_device_data(of or data())


def add(a: Node, b: Node) -> Node:
    call = Call(torch.ops.aten.add.Tensor, (operand(0), operand(1)), (), (F2, F2), (F2,))
    return Node(call, (a.value(), b.value()))


def run(computation: Computation, arguments: list[BackendData]) -> list[list[float]]:
    backend = EagerTestBackend()
    (compiled,) = backend.compile([computation])
    results = backend.execute_computation(compiled, arguments, DEVICE)
    return [backend.make_tensor_from_computation_data(r).tolist() for r in results]


def test_an_ordered_list_of_nodes_is_lowered_at_once() -> None:
    a, b = leaf(), leaf()
    total = add(a, b)
    context = LoweringContext("step", DEVICE, [a, b, total])
    context.add_result(total.value())
    computation = context.build()
    assert [a, b, total] == computation.graph.nodes
    assert [total.value()] == computation.graph.results
    assert [[2.0, 4.0]] == run(computation, context.parameters_data)


def test_an_empty_context_is_fed_node_by_node() -> None:
    a, b = leaf(), leaf()
    total = add(a, b)
    context = LoweringContext("step", DEVICE)
    for node in (a, b, total):
        context.lower(node)
    context.add_result(total.value())
    assert [a, b, total] == context.build().graph.nodes


def test_the_backends_factory_makes_both_forms() -> None:
    a, b = leaf(), leaf()
    total = add(a, b)
    backend = EagerTestBackend()
    whole = backend.create_lowering_context("whole", DEVICE, [a, b, total])
    empty = backend.create_lowering_context("empty", DEVICE)
    assert ("whole", 3) == (whole.name, len(whole.build().graph))
    assert ("empty", 0) == (empty.name, len(empty.build().graph))


def test_a_node_is_lowered_once_however_often_it_is_fed() -> None:
    a = leaf()
    context = LoweringContext("step", DEVICE, [a, a])
    context.lower(a)
    assert [a] == context.build().graph.nodes


def test_a_node_before_its_operand_is_refused_and_both_are_named() -> None:
    a, b = leaf(), leaf()
    total = add(a, b)
    with pytest.raises(ValueError, match=r"aten\.add\.Tensor.*before its operand.*port\.device_data.*operands first"):
        LoweringContext("step", DEVICE, [total, a, b])


def test_the_emission_map_tells_what_was_lowered() -> None:
    a = leaf()
    context = LoweringContext("step", DEVICE, [a])
    assert context.emission_map == {a: a}


def test_a_node_in_the_given_emission_map_is_not_lowered_again() -> None:
    a, b = leaf(), leaf()
    total = add(a, b)

    class Emitting(LoweringContext):
        emitted: list[Node] = []  # noqa: RUF012 - one test, one context

        def lower(self, node: Node) -> None:
            if node not in self.emission_map:
                self.emitted.append(node)
            super().lower(node)

    emitted = {a: "register 7"}
    context = Emitting("step", DEVICE, [a, b, total], emitted)
    assert [b, total] == context.emitted
    assert [b.data] == context.parameters_data
    assert context.emission_map[a] == "register 7"
    assert emitted == {a: "register 7"}


def test_a_graph_that_needs_what_was_emitted_elsewhere_is_refused() -> None:
    a, b = leaf(), leaf()
    context = LoweringContext("step", DEVICE, [a, b, add(a, b)], {a: "register 7"})
    with pytest.raises(ValueError, match=r"port\.device_data.*emitted elsewhere.*override build"):
        context.build()
    context = LoweringContext("step", DEVICE, [a], {a: "register 7"})
    context.add_result(a.value())
    with pytest.raises(ValueError, match="emitted elsewhere"):
        context.build()


def test_a_graph_may_leave_alone_what_was_emitted_elsewhere() -> None:
    a, b = leaf(), leaf()
    context = LoweringContext("step", DEVICE, [a, b], {a: "register 7"})
    assert [b] == context.build().graph.nodes


def test_results_are_numbered_in_the_order_of_asking() -> None:
    a, b = leaf(), leaf()
    context = LoweringContext("step", DEVICE, [a, b])
    assert [0, 1, 2] == [context.add_result(n.value()) for n in (b, a, b)]
    assert [b.value(), a.value(), b.value()] == context.build().graph.results


def test_asking_for_a_result_lowers_its_node() -> None:
    a = leaf()
    context = LoweringContext("step", DEVICE)
    context.add_result(a.value())
    assert [a] == context.build().graph.nodes


def test_asking_for_a_result_whose_operands_are_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="before its operand"):
        LoweringContext("step", DEVICE).add_result(add(leaf(), leaf()).value())


def test_parameters_are_the_data_leaves_in_the_order_of_lowering() -> None:
    first, second = data(), data()
    context = LoweringContext("step", DEVICE, [leaf(first), leaf(second)])
    assert [first, second] == context.parameters_data
    assert context.build().parameter_count == 2


def test_get_parameter_gives_the_value_of_data_that_was_lowered() -> None:
    d = data()
    node = leaf(d)
    context = LoweringContext("step", DEVICE, [node])
    assert context.get_parameter(d) == Value(node)
    assert len(context.build().graph) == 1


def test_get_parameter_makes_a_parameter_of_data_that_was_not_lowered_once() -> None:
    d = data()
    context = LoweringContext("step", DEVICE)
    value = context.get_parameter(d)
    assert value == context.get_parameter(d)
    assert value.node.data is d
    assert [d] == context.parameters_data
    context.add_result(value)
    assert [[1.0, 2.0]] == run(context.build(), context.parameters_data)


def with_results(count: int) -> LoweringContext:
    nodes = [leaf() for _ in range(count)]
    context = LoweringContext("step", DEVICE, nodes)
    for node in nodes:
        context.add_result(node.value())
    return context


def test_aliases_go_from_result_to_parameter() -> None:
    context = with_results(2)
    context.set_up_alias(0, 1)
    context.set_up_alias(1, 0)
    assert context.build().aliases == {0: 1, 1: 0}


def test_two_leaves_of_one_data_are_two_parameters_for_an_alias_too() -> None:
    d = data()
    nodes = [leaf(d), leaf(d)]
    context = LoweringContext("step", DEVICE, nodes)
    context.add_result(nodes[1].value())
    context.set_up_alias(0, 1)
    assert context.build().aliases == {0: 1}


@pytest.mark.parametrize("result", [-1, 2])
def test_an_alias_of_a_result_that_is_not_there_is_refused(result: int) -> None:
    with pytest.raises(IndexError, match=f"there is no result {result}, there are 2"):
        with_results(2).set_up_alias(result, 0)


@pytest.mark.parametrize("parameter", [-1, 2])
def test_an_alias_of_a_parameter_that_is_not_there_is_refused(parameter: int) -> None:
    with pytest.raises(IndexError, match=f"there is no parameter {parameter}, there are 2"):
        with_results(2).set_up_alias(0, parameter)


@pytest.mark.parametrize(("result", "parameter"), [(0, 1), (1, 0)])
def test_a_second_alias_of_a_result_or_a_parameter_is_refused(result: int, parameter: int) -> None:
    context = with_results(2)
    context.set_up_alias(0, 0)
    with pytest.raises(ValueError, match=rf"set_up_alias\({result}, {parameter}\): one of them is aliased already"):
        context.set_up_alias(result, parameter)
    assert context.build().aliases == {0: 0}


def test_the_computation_knows_its_name_devices_and_cause() -> None:
    other = BackendDevice(DEVICE.type, 1)
    context = LoweringContext("step", DEVICE)
    context.devices = (DEVICE, other)
    context.cause = SyncCause.READ
    computation = context.build()
    assert ("step", (DEVICE, other), SyncCause.READ) == (computation.name, computation.devices, computation.cause)


def test_a_computation_is_for_the_contexts_device_and_a_barrier_by_default() -> None:
    computation = LoweringContext("step", DEVICE).build()
    assert ((DEVICE,), SyncCause.BARRIER) == (computation.devices, computation.cause)
