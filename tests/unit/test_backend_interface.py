"""Every method of the contract, on every backend that can be had without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.eager_backend import EagerTestBackend
from torchport.backend import (
    BackendData,
    BackendDevice,
    BackendDeviceType,
    BackendImplInterface,
    Computation,
    IrBuilder,
    LazyTensor,
    NullBackend,
    RecordedCall,
    RecordingBackend,
    Shape,
)
from torchport.backend.recording import RecordingDelegate, summary
from torchport.backend.verification import interface_methods
from torchport.backends.interpreter import InterpreterBackend
from torchport.ir.call import Call, number, operand
from torchport.ir.graph import Graph
from torchport.ir.node import Node

F23 = Shape(torch.float32, (2, 3))
BACKENDS: dict[str, Callable[[], BackendImplInterface]] = {
    "eager": EagerTestBackend,
    "recording": lambda: RecordingBackend(EagerTestBackend()),
    "interpreter": InterpreterBackend,
    "null": NullBackend,
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> BackendImplInterface:
    return BACKENDS[request.param]()


@pytest.fixture(params=[name for name in BACKENDS if name != "null"])
def computing(request: pytest.FixtureRequest) -> BackendImplInterface:
    """A backend whose values are values."""
    return BACKENDS[request.param]()


def device_of(backend: BackendImplInterface) -> BackendDevice:
    return backend.get_backend_devices()[0]


def upload(backend: BackendImplInterface, tensor: torch.Tensor) -> BackendData:
    shape = Shape(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
    return backend.make_computation_data_from_tensor(tensor, shape, device_of(backend))


def graph_of(call: Call, data: list[BackendData], numbers: tuple[object, ...] = ()) -> Graph:
    """One call over data leaves, and all of its outputs."""
    leaves = [IrBuilder().make_device_data(d) for d in data]
    node = Node(call, tuple(leaf.value() for leaf in leaves), numbers)
    return Graph([*leaves, node], [node.value(i) for i in range(len(call.outputs))])


def run(backend: BackendImplInterface, graph: Graph, numbers: tuple[float, ...] = ()) -> list[torch.Tensor]:
    device = device_of(backend)
    (compiled,) = backend.compile([Computation("test", graph, [device])])
    arguments = [n.data for n in graph.parameters]
    arguments += [backend.make_computation_data_from_scalar(n, device) for n in numbers]
    results = backend.execute_computation(compiled, arguments, device)
    assert len(results) == len(graph.results)
    return [backend.make_tensor_from_computation_data(r) for r in results]


# -- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16])
def test_a_tensor_goes_to_the_device_and_comes_back(computing: BackendImplInterface, dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1, 2], [3, 0, 5]]).to(dtype)
    data = upload(computing, tensor)
    assert data.has_value
    assert (data.device, data.shape) == (device_of(computing), Shape(dtype, (2, 3)))
    assert torch.equal(tensor, computing.make_tensor_from_computation_data(data))


def test_a_backend_keeps_no_reference_to_the_host_tensor(computing: BackendImplInterface) -> None:
    tensor = torch.ones(2, 3)
    data = upload(computing, tensor)
    tensor.zero_()
    assert torch.equal(torch.ones(2, 3), computing.make_tensor_from_computation_data(data))


def test_the_host_tensor_that_comes_back_is_the_callers_own(computing: BackendImplInterface) -> None:
    data = upload(computing, torch.ones(2, 3))
    computing.make_tensor_from_computation_data(data).zero_()
    assert torch.equal(torch.ones(2, 3), computing.make_tensor_from_computation_data(data))


def test_a_tensor_comes_back_in_the_logical_dtype(backend: BackendImplInterface) -> None:
    data = upload(backend, torch.zeros(2, 3))
    made = backend.make_tensor_from_computation_data(data, torch.float64)
    assert torch.equal(torch.zeros(2, 3, dtype=torch.float64), made)
    assert made.dtype is torch.float64


def test_the_layout_of_a_tensor_is_kept(computing: BackendImplInterface) -> None:
    tensor = torch.arange(6.0).reshape(3, 2).t()
    data = upload(computing, tensor)
    made = computing.make_tensor_from_computation_data(data)
    assert torch.equal(tensor, made)
    assert data.shape.strides == (1, 2)


@pytest.mark.parametrize("number_", [True, 3, 0.5, 2 + 1j])
def test_a_number_goes_to_the_device_and_comes_back(computing: BackendImplInterface, number_: complex) -> None:
    data = computing.make_computation_data_from_scalar(number_, device_of(computing))
    assert data.has_value
    assert data.shape.sizes == ()
    assert number_ == computing.make_tensor_from_computation_data(data).item()


def test_a_placeholder_is_given_its_value_by_assign(computing: BackendImplInterface) -> None:
    placeholder = computing.create_data_placeholder(device_of(computing), F23)
    assert (False, F23, device_of(computing)) == (placeholder.has_value, placeholder.shape, placeholder.device)
    placeholder.assign(upload(computing, torch.ones(2, 3)))
    assert torch.equal(torch.ones(2, 3), computing.make_tensor_from_computation_data(placeholder))


def test_a_subclass_of_the_null_backend_that_computes_does_not_lower_modules_to_zeros() -> None:
    class Computes(NullBackend):
        def execute_computation(self, computation: Computation, arguments: Any, device: BackendDevice) -> Any:
            raise NotImplementedError

    assert NullBackend().delegate() is not None
    assert Computes().delegate() is None


def test_only_a_device_data_node_has_data(backend: BackendImplInterface) -> None:
    data = upload(backend, torch.ones(2, 3))
    leaf = backend.get_ir_builder().make_device_data(data)
    cast = backend.get_ir_builder().make_cast(leaf.value(), torch.float64)
    assert backend.get_computation_data_from_node(leaf) is data
    assert backend.get_computation_data_from_node(cast) is None


# -- computations -----------------------------------------------------------------------------------------------------


def test_compile_returns_as_many_computations_in_the_same_order(backend: BackendImplInterface) -> None:
    cast = Call(torch.ops.aten.neg.default, (operand(0),), (), (F23,), (F23,))
    graph = graph_of(cast, [upload(backend, torch.ones(2, 3))])
    instances = [Computation(name, graph, [device_of(backend)]) for name in "abc"]
    assert ["a", "b", "c"] == [c.name for c in backend.compile(instances)]
    assert [] == backend.compile([])


def test_a_computation_takes_tensors_and_numbers_and_gives_its_results(computing: BackendImplInterface) -> None:
    call = Call(torch.ops.aten.add.Tensor, (operand(0), operand(1)), (("alpha", number(0, float)),), (F23, F23), (F23,))
    a, b = torch.rand(2, 3), torch.rand(2, 3)
    graph = graph_of(call, [upload(computing, a), upload(computing, b)], (0.5,))
    # The number of the execution, not that of the trace, is what counts.
    for alpha in (0.5, 2.0):
        (result,) = run(computing, graph, (alpha,))
        torch.testing.assert_close(result, torch.add(a, b, alpha=alpha), rtol=0, atol=0)


def test_a_call_with_several_outputs_gives_each(computing: BackendImplInterface) -> None:
    tensor = torch.rand(2, 3)
    outputs = (Shape(torch.float32, (2,)), Shape(torch.int64, (2,)))
    graph = graph_of(Call(torch.ops.aten.max.dim, (operand(0), 1), (), (F23,), outputs), [upload(computing, tensor)])
    values, indices = run(computing, graph)
    assert torch.equal(tensor.max(1).values, values)
    assert torch.equal(tensor.max(1).indices, indices)


def test_the_special_nodes_of_the_builder_run(computing: BackendImplInterface) -> None:
    builder = computing.get_ir_builder()
    leaf = builder.make_device_data(upload(computing, torch.ones(1, 3)))
    scalar = builder.make_scalar(2, torch.float32)
    cast = builder.make_cast(leaf.value(), torch.int32)
    expand = builder.make_expand(leaf.value(), (2, 3))
    both = builder.make_tensor_list([scalar.value(), cast.value()])
    graph = Graph([leaf, scalar, cast, expand, both], [both.value(0), both.value(1), expand.value()])
    number_, integers, expanded = run(computing, graph, (2,))
    assert torch.equal(torch.tensor(2.0), number_)
    assert torch.equal(torch.ones(1, 3, dtype=torch.int32), integers)
    assert torch.equal(torch.ones(2, 3), expanded)


def test_running_a_computation_leaves_its_arguments_as_they_were(computing: BackendImplInterface) -> None:
    data = upload(computing, torch.ones(2, 3))
    run(computing, graph_of(Call(torch.ops.aten.neg.default, (operand(0),), (), (F23,), (F23,)), [data]))
    assert torch.equal(torch.ones(2, 3), computing.make_tensor_from_computation_data(data))


def test_a_node_that_was_traced_is_supported(backend: BackendImplInterface) -> None:
    call = Call(torch.ops.aten.neg.default, (operand(0),), (), (F23,), (F23,))
    assert backend.supports(graph_of(call, [upload(backend, torch.ones(2, 3))]).nodes[-1])


def test_both_forms_of_a_lowering_context_build_the_same_graph(backend: BackendImplInterface) -> None:
    call = Call(torch.ops.aten.neg.default, (operand(0),), (), (F23,), (F23,))
    graph = graph_of(call, [upload(backend, torch.ones(2, 3))])
    whole = backend.create_lowering_context("step", device_of(backend), graph.nodes)
    fed = backend.create_lowering_context("step", device_of(backend))
    for node in graph.nodes:
        fed.lower(node)
    for context in (whole, fed):
        context.add_result(graph.results[0])
    assert whole.build().graph.hash == fed.build().graph.hash == graph.hash


def test_a_program_spans_the_devices_given_or_else_the_one(backend: BackendImplInterface) -> None:
    one, other = device_of(backend), BackendDevice(BackendDeviceType("CPU"), 7)
    assert [one] == backend.get_compilation_devices(one, [])
    assert [one, other] == backend.get_compilation_devices(one, [one, other])


def test_the_backends_text_of_a_computation_is_a_text(backend: BackendImplInterface) -> None:
    call = Call(torch.ops.aten.neg.default, (operand(0),), (), (F23,), (F23,))
    graph = graph_of(call, [upload(backend, torch.ones(2, 3))])
    (compiled,) = backend.compile([Computation("test", graph, [device_of(backend)])])
    assert "neg" in backend.get_computation_backend_text(compiled)


def test_a_seed_repeats_the_random_numbers_of_the_device(computing: BackendImplInterface) -> None:
    call = Call(torch.ops.aten.rand.default, ((2, 3),), (), (), (F23,))
    drawn: list[torch.Tensor] = []
    for seed in (7, 8, 7):
        computing.set_rng_seed(seed)
        drawn += run(computing, graph_of(call, []))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    # All of these declare that their stream is that of eager PyTorch.
    assert computing.capabilities.eager_random_stream
    assert torch.equal(torch.rand(2, 3, generator=torch.Generator().manual_seed(7)), drawn[0])


def test_the_state_of_the_generator_can_be_kept_and_restored(computing: BackendImplInterface) -> None:
    assert computing.capabilities.random_state
    graph = graph_of(Call(torch.ops.aten.rand.default, ((2, 3),), (), (), (F23,)), [])
    computing.set_rng_seed(7)
    state = computing.get_rng_state()
    assert (state.dtype, state.device.type) == (torch.uint8, "cpu")
    first = run(computing, graph)
    assert not torch.equal(first[0], run(computing, graph)[0])
    computing.set_rng_state(state)
    assert torch.equal(first[0], run(computing, graph)[0])


# -- devices ----------------------------------------------------------------------------------------------------------


def test_the_default_device_is_one_of_the_backends_devices(backend: BackendImplInterface) -> None:
    default = BackendDevice(backend.get_default_device_type(), backend.get_default_device_ordinal())
    assert default in backend.get_backend_devices()
    assert backend.get_backend_device(torch.device("cpu")) == default


def test_the_default_device_may_be_chosen_among_those_there_are(backend: BackendImplInterface) -> None:
    device = device_of(backend)
    backend.set_default_device_type(device.type)
    backend.set_default_device_ordinal(device.ordinal)
    assert (device.type, device.ordinal) == (backend.get_default_device_type(), backend.get_default_device_ordinal())


def test_hardware_that_is_not_there_is_refused_with_what_there_is(backend: BackendImplInterface) -> None:
    before = backend.get_default_device_type()
    with pytest.raises(ValueError, match=str(before)):
        backend.set_default_device_type(BackendDeviceType("QUANTUM"))
    with pytest.raises(ValueError, match="99"):
        backend.set_default_device_ordinal(99)
    assert (before, 0) == (backend.get_default_device_type(), backend.get_default_device_ordinal())


def test_an_operator_that_a_backend_lacks_runs_on_the_cpu(backend: BackendImplInterface) -> None:
    assert BackendDeviceType("CPU") == backend.eager_fallback_device_type()


# -- life cycle and reports -------------------------------------------------------------------------------------------


def test_the_hooks_of_the_life_cycle_can_be_called(backend: BackendImplInterface) -> None:
    backend.initialize_aten_bindings()
    backend.prepare_to_exit()
    # It may be activated again after another backend had taken over.
    assert backend.compile([]) == []


def test_every_live_tensor_is_synced_by_default(backend: BackendImplInterface) -> None:
    assert backend.should_sync_tensor(LazyTensor(F23, None, 0))


def test_reports_are_texts_and_figures(backend: BackendImplInterface) -> None:
    assert isinstance(backend.create_metric_report(), str)
    assert all(isinstance(value, int | float) for value in backend.get_metrics().values())


# -- the null backend -------------------------------------------------------------------------------------------------


def test_the_null_backend_computes_zeros_of_the_shape() -> None:
    backend = NullBackend()
    data = upload(backend, torch.ones(2, 3))
    (result,) = run(backend, graph_of(Call(torch.ops.aten.neg.default, (operand(0),), (), (F23,), (F23,)), [data]))
    assert torch.equal(torch.zeros(2, 3), result)


@pytest.mark.parametrize("strides", [(3, 1), (1, 2), (0, 1), (0, 0)])
def test_the_null_backend_keeps_the_layout(strides: tuple[int, int]) -> None:
    backend = NullBackend()
    data = BackendData(device_of(backend), Shape(torch.float32, (2, 3), strides), "anything")
    made = backend.make_tensor_from_computation_data(data)
    assert (made.stride(), made.count_nonzero().item()) == (strides, 0)


def test_the_null_backend_holds_no_memory() -> None:
    data = upload(NullBackend(), torch.ones(2, 3))
    assert data.has_value
    assert repr(data.handle) == "NullHandle()"


def test_the_null_backend_may_claim_several_devices() -> None:
    backend = NullBackend(device_count=2)
    assert ["NULL0", "NULL1"] == [str(d) for d in backend.get_backend_devices()]
    backend.set_default_device_ordinal(1)
    assert str(backend.get_backend_device(torch.device("cpu"))) == "NULL1"
    assert str(backend.get_backend_device(torch.device("cuda", 0))) == "NULL0"
    with pytest.raises(ValueError, match=r"no cuda:2: the null backend has 2 device\(s\)"):
        backend.get_backend_device(torch.device("cuda", 2))


def test_the_null_backend_has_a_generator_state_as_well() -> None:
    backend = NullBackend()
    backend.set_rng_state(backend.get_rng_state())
    assert backend.get_rng_state().dtype is torch.uint8


# -- the recording backend --------------------------------------------------------------------------------------------


class Probe:
    """An inner backend that remembers what it was called with."""

    capabilities = NullBackend.capabilities

    def __init__(self) -> None:
        self.called: list[tuple[str, tuple[object, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        def method(*args: object) -> object:
            self.called.append((name, args))
            return f"what {name} returned"

        return method


@pytest.mark.parametrize("method", interface_methods())
def test_recording_hands_on_every_method_with_all_arguments(method: str) -> None:
    inner = Probe()
    recording = RecordingBackend(inner)  # type: ignore[arg-type]
    parameters = list(interface_methods()[method].parameters)[1:]
    arguments = [f"the {name}" for name in parameters]
    returned = getattr(recording, method)(*arguments)
    assert [(method, tuple(arguments))] == inner.called
    assert [RecordedCall(method, ", ".join(f"{p}='the {p}'" for p in parameters))] == recording.calls
    returns_nothing = interface_methods()[method].return_annotation in (None, "None")
    if method == "delegate":  # records as well, see tests/aot/test_availability.py
        assert isinstance(returned, RecordingDelegate)
        returned = returned.inner
    assert returned == (None if returns_nothing else f"what {method} returned")


def test_recording_has_the_capabilities_of_the_inner_backend() -> None:
    assert RecordingBackend(EagerTestBackend()).capabilities == EagerTestBackend.capabilities


def test_recording_forgets_when_told() -> None:
    recording = RecordingBackend(NullBackend())
    recording.get_backend_devices()
    recording.set_rng_seed(3)
    assert ["get_backend_devices", "set_rng_seed"] == recording.methods
    recording.clear()
    assert [] == recording.calls


def test_a_call_that_fails_is_recorded_too() -> None:
    recording = RecordingBackend(NullBackend())
    with pytest.raises(ValueError, match="NULL"):
        recording.set_default_device_type(BackendDeviceType("CPU"))
    assert recording.calls == [("set_default_device_type", "type=CPU")]


def test_a_summary_tells_shapes_and_keeps_nothing_alive() -> None:
    device = BackendDevice(BackendDeviceType("CPU"))
    data = BackendData(device, F23, "buffer")
    values = {
        "Tensor f32[2, 3]": torch.zeros(2, 3),
        "BackendData(CPU0, f32[2, 3], value)": data,
        "port.device_data": IrBuilder().make_device_data(data),
        "CPU0": device,
        "[1, 2]": (1, 2),
        "[0, 1, 2, 3, 4, 5, 6, 7, … 12 more]": list(range(20)),
        "{1 entries}": {"a": 1},
        "torch.float32": torch.float32,
    }
    assert list(values) == [summary(v) for v in values.values()]
