"""The nouns of the contract: devices, data, computations, availability."""

from __future__ import annotations

import dataclasses
import weakref

import pytest
import torch

from support.eager_backend import EagerTestBackend
from torchport.backend import (
    Availability,
    BackendData,
    BackendDevice,
    BackendDeviceType,
    Capabilities,
    Computation,
    IrBuilder,
    LazyTensor,
    Shape,
    Support,
    SyncCause,
)
from torchport.ir.call import Call, number, operand
from torchport.ir.graph import Graph
from torchport.ir.node import Node

CPU, CUDA = BackendDeviceType("CPU"), BackendDeviceType("CUDA")
CPU0, CPU1, CUDA0 = BackendDevice(CPU), BackendDevice(CPU, 1), BackendDevice(CUDA)
F2 = Shape(torch.float32, (2,))
I2 = Shape(torch.int64, (2,))

# -- devices ----------------------------------------------------------------------------------------------------------


def test_a_device_prints_as_its_type_and_ordinal() -> None:
    assert ["CPU0", "CPU1", "CUDA0"] == [str(d) for d in (CPU0, CPU1, CUDA0)]


def test_a_device_type_prints_as_its_name() -> None:
    assert str(BackendDeviceType("TPU")) == "TPU"


def test_a_devices_ordinal_is_zero_unless_given() -> None:
    assert BackendDevice(CPU).ordinal == 0


def test_devices_of_equal_type_and_ordinal_are_equal_and_hash_alike() -> None:
    twin = BackendDevice(BackendDeviceType("CPU"), 1)
    assert twin == CPU1
    assert hash(twin) == hash(CPU1)
    assert len({CPU0, CPU1, twin}) == 2
    assert CPU0 != CUDA0


def test_devices_are_ordered_by_type_and_then_by_ordinal() -> None:
    assert [CPU0, CPU1, CUDA0] == sorted([CUDA0, CPU1, CPU0])
    assert CPU < CUDA


def test_devices_and_their_types_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CPU0.ordinal = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        CPU.name = "GPU"


# -- data -------------------------------------------------------------------------------------------------------------


def test_a_placeholder_has_a_shape_and_no_value() -> None:
    data = BackendData(CPU0, F2)
    assert not data.has_value
    assert (CPU0, F2, None, None) == (data.device, data.shape, data.handle, data.info)


def test_a_handle_that_is_false_is_a_value() -> None:
    assert BackendData(CPU0, F2, 0).has_value


def test_assign_gives_a_placeholder_the_value_of_other_data() -> None:
    placeholder, data = BackendData(CPU0, F2), BackendData(CPU0, F2, "buffer")
    placeholder.assign(data)
    assert placeholder.has_value
    assert placeholder.handle == "buffer"


def test_assign_takes_over_a_size_that_was_not_known_before() -> None:
    placeholder = BackendData(CPU0, Shape(torch.int64, (10,)))
    placeholder.assign(BackendData(CPU0, I2, "buffer"))
    assert placeholder.shape is I2


def test_assign_keeps_the_info_slot() -> None:
    placeholder = BackendData(CPU0, F2)
    placeholder.info = "who manages it"
    placeholder.assign(BackendData(CPU0, F2, "buffer"))
    assert placeholder.info == "who manages it"


def test_assign_refuses_data_without_a_value() -> None:
    with pytest.raises(ValueError, match=r"source of f32\[2\] has no value"):
        BackendData(CPU0, F2).assign(BackendData(CPU0, F2))


def test_assign_refuses_another_dtype_and_changes_nothing() -> None:
    placeholder = BackendData(CPU0, F2)
    with pytest.raises(ValueError, match=r"i64\[2\] to data of f32\[2\]"):
        placeholder.assign(BackendData(CPU0, I2, "buffer"))
    assert not placeholder.has_value


def test_data_says_in_its_repr_whether_it_has_a_value() -> None:
    failed = BackendData(CPU0, F2)
    failed.error = RuntimeError("out of memory")
    texts = [repr(d) for d in (BackendData(CPU0, F2, "b"), BackendData(CPU0, F2), failed)]
    assert [f"BackendData(CPU0, f32[2], {s})" for s in ("value", "placeholder", "failed")] == texts


def test_data_can_be_referred_to_weakly() -> None:
    data = BackendData(CPU0, F2)
    reference = weakref.ref(data)
    del data
    assert reference() is None


# -- computations -----------------------------------------------------------------------------------------------------


def multiply_and_scale() -> Graph:
    """(p0 · p1) · n0 and p0 + n1 · p1, over f32[2]."""
    builder = IrBuilder()
    a, b = (builder.make_device_data(BackendData(CPU0, F2)).value() for _ in range(2))
    product = Node(Call(torch.ops.aten.mul.Tensor, (operand(0), operand(1)), (), (F2, F2), (F2,)), (a, b))
    scale = Call(torch.ops.aten.mul.Scalar, (operand(0), number(0, float)), (), (F2,), (F2,))
    scaled = Node(scale, (product.value(),), (0.5,))
    add = Call(torch.ops.aten.add.Tensor, (operand(0), operand(1)), (("alpha", number(0, int)),), (F2, F2), (F2,))
    total = Node(add, (a, b), (3,))
    return Graph([a.node, b.node, product, scaled, total], [scaled.value(), total.value()])


def test_a_computations_parameters_are_its_tensors_and_then_its_numbers() -> None:
    computation = Computation("step", multiply_and_scale(), [CPU0])
    assert computation.parameter_count == 4
    assert [F2, F2, float, int] == computation.parameter_shapes
    assert ["p0", "p1", "n0", "n1"] == computation.parameter_names


def test_a_computation_has_one_shape_per_result() -> None:
    assert [F2, F2] == Computation("step", multiply_and_scale(), [CPU0]).result_shape


def test_a_computation_was_asked_for_by_a_barrier_unless_it_says_otherwise() -> None:
    graph = multiply_and_scale()
    assert Computation("step", graph, [CPU0]).cause is SyncCause.BARRIER
    assert Computation("step", graph, [CPU0], cause=SyncCause.READ).cause is SyncCause.READ


def test_the_causes_of_a_computation_print_as_words() -> None:
    assert ["barrier", "read", "cut", "eager"] == [str(c) for c in SyncCause]


def test_a_computation_keeps_its_own_copy_of_devices_and_aliases() -> None:
    devices, aliases = [CPU0], {0: 1}
    computation = Computation("step", multiply_and_scale(), devices, aliases)
    devices.append(CPU1)
    aliases[1] = 0
    assert computation.devices == (CPU0,)
    assert computation.aliases == {0: 1}


def test_a_computation_says_in_its_repr_how_large_it_is() -> None:
    computation = Computation("step", multiply_and_scale(), [CPU0])
    assert repr(computation) == "Computation('step', 5 nodes, 4 parameters, 2 results)"


def test_a_computations_text_is_that_of_its_graph() -> None:
    graph = multiply_and_scale()
    text = Computation("step", graph, [CPU0]).text
    assert text == str(graph)
    assert "aten.mul.Tensor" in text


def test_a_computation_runs_on_a_backend_with_its_arguments_in_parameter_order() -> None:
    backend = EagerTestBackend()
    (compiled,) = backend.compile([Computation("step", multiply_and_scale(), [CPU0])])
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    arguments = [backend.make_computation_data_from_tensor(t, F2, CPU0) for t in tensors]
    arguments += [backend.make_computation_data_from_scalar(n, CPU0) for n in (0.5, 3)]
    results = backend.execute_computation(compiled, arguments, CPU0)
    assert [[1.5, 4.0], [10.0, 14.0]] == [backend.make_tensor_from_computation_data(r).tolist() for r in results]


# -- small values -----------------------------------------------------------------------------------------------------


def test_support_is_true_or_false_with_a_reason() -> None:
    assert Support(True)
    refused = Support(False, "complex64 has no tensor type there")
    assert not refused
    assert refused.reason == "complex64 has no tensor type there"


def test_capabilities_are_off_unless_declared() -> None:
    assert {False} == {getattr(Capabilities(), f.name) for f in dataclasses.fields(Capabilities)}


def test_availability_is_true_or_false_and_immutable() -> None:
    assert Availability(True)
    absent = Availability(False, "no driver")
    assert not absent
    assert (absent.reason, absent.version, absent.capabilities) == ("no driver", "", Capabilities())
    with pytest.raises(dataclasses.FrozenInstanceError):
        absent.available = True
    assert not hasattr(absent, "__dict__")


def test_a_lazy_tensor_is_unwritten_pending_or_materialised() -> None:
    graph = multiply_and_scale()
    unwritten = LazyTensor(F2, None, 0)
    pending = LazyTensor(F2, graph.results[0], 1)
    materialised = LazyTensor(F2, graph.parameters[0].value(), 2)
    states = ["unwritten", "pending", "materialised"]
    assert [f"LazyTensor({i}, f32[2], {s})" for i, s in enumerate(states)] == [
        repr(t) for t in (unwritten, pending, materialised)
    ]
    assert (None, None, graph.parameters[0].data) == (unwritten.data, pending.data, materialised.data)
