"""The methods of the contract that concern devices, data and figures."""

from __future__ import annotations

import math

import pytest
import torch
from interpreter_graphs import CPU0, Traced, aten

from torchport.backend import BackendData, BackendDevice, BackendDeviceType
from torchport.backends.interpreter import InterpreterBackend
from torchport.ir.call import Call, operand
from torchport.ir.node import Node
from torchport.ir.shape import Shape


@pytest.fixture
def backend() -> InterpreterBackend:
    return InterpreterBackend()


def test_data_is_a_copy_in_the_layout_asked_for(backend: InterpreterBackend) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    shape = Shape(torch.float32, (2, 3), (1, 2))
    data = backend.make_computation_data_from_tensor(x, shape, CPU0)
    expected = x.clone()
    x.zero_()
    assert shape is data.shape
    assert (1, 2) == data.handle.stride()
    assert torch.equal(expected, data.handle)
    back = backend.make_tensor_from_computation_data(data)
    back.zero_()
    assert torch.equal(expected, data.handle)
    wide = backend.make_tensor_from_computation_data(data, torch.float64)
    assert torch.float64 is wide.dtype
    assert torch.equal(expected.double(), wide)


def test_overlapping_layouts_become_row_major(backend: InterpreterBackend) -> None:
    x = torch.ones(1, 3).expand(2, 3)
    data = backend.make_computation_data_from_tensor(x, Shape(x.dtype, (2, 3), x.stride()), CPU0)
    assert Shape(torch.float32, (2, 3)) is data.shape
    assert (3, 1) == data.handle.stride()


def test_a_conjugate_view_arrives_resolved(backend: InterpreterBackend) -> None:
    x = torch.tensor([1 + 2j]).conj()
    data = backend.make_computation_data_from_tensor(x, Shape(x.dtype, (1,)), CPU0)
    assert not data.handle.is_conj()
    t = Traced(backend)
    (found,) = t.execute(t.compile(t.call(aten._conj.default, t.leaf(data))))
    assert not found.handle.is_conj()
    assert [1 + 2j] == found.handle.tolist()


def test_a_copy_carries_a_conjugation_out(backend: InterpreterBackend) -> None:
    x = torch.tensor([1 + 2j])
    t = Traced(backend)
    copy = t.call(aten.clone.default, t.call(aten._conj.default, t.parameter(x)))
    assert [[1.0, -2.0]] == t.run(t.call(aten.view_as_real.default, copy))[0].tolist()


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(3), "sizes must agree"),
        (torch.ones(2).to_sparse(), "to_dense"),
        (torch.ones(2, device="meta"), "no values"),
    ],
)
def test_what_cannot_be_copied_is_refused(backend: InterpreterBackend, tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        backend.make_computation_data_from_tensor(tensor, Shape(torch.float32, (2,)), CPU0)


def test_numbers_are_kept_as_they_are(backend: InterpreterBackend) -> None:
    make = backend.make_computation_data_from_scalar
    assert make(2.5, CPU0) is make(2.5, CPU0)
    assert make(1, CPU0) is not make(1.0, CPU0)
    assert bool is type(make(True, CPU0).handle)
    assert -1.0 == math.copysign(1, make(-0.0, CPU0).handle)
    assert 1.0 == math.copysign(1, make(0.0, CPU0).handle)
    assert Shape(torch.int64, ()) is make(3, CPU0).shape
    assert 3 == backend.make_tensor_from_computation_data(make(3, CPU0)).item()


def test_data_without_a_value_cannot_be_read(backend: InterpreterBackend) -> None:
    with pytest.raises(ValueError, match="no value yet"):
        backend.make_tensor_from_computation_data(BackendData(CPU0, Shape(torch.float32, ())))


def test_devices(backend: InterpreterBackend) -> None:
    assert CPU0 == backend.get_backend_devices()[0]
    assert CPU0 == backend.get_backend_device(torch.device("meta"))
    assert BackendDeviceType("CPU") == backend.get_default_device_type() == backend.eager_fallback_device_type()
    backend.set_default_device_type(BackendDeviceType("CPU"))
    backend.set_default_device_ordinal(0)
    assert 0 == backend.get_default_device_ordinal()
    with pytest.raises(ValueError, match="there is no CPU device 1"):
        backend.set_default_device_ordinal(1)
    with pytest.raises(ValueError, match="has no TPU here; it has CPU"):
        backend.set_default_device_type(BackendDeviceType("TPU"))
    with pytest.raises(ValueError, match="has 1 CPU device"):
        backend.get_backend_device(torch.device("meta", 3))


def test_support_says_why_not(backend: InterpreterBackend) -> None:
    shape = Shape(torch.float32, (2,))

    def support(op: torch._ops.OpOverload) -> str:
        return backend.supports(Node(Call(op, (operand(0),), (), (shape,), (shape,)))).reason

    assert "" == support(aten.relu.default)
    assert "writes into its arguments" in support(aten.relu_.default)
    batch_norm = Call(
        aten.native_batch_norm.default, (*map(operand, range(5)), True, 0.1, 1e-5), (), (shape,) * 5, (shape,) * 3
    )
    assert "writes its running statistics" in backend.supports(Node(batch_norm)).reason
    assert "no CPU kernel for aten.cudnn_grid_sampler" in support(aten.cudnn_grid_sampler.default)


def test_figures_and_report(backend: InterpreterBackend) -> None:
    t = Traced(backend)
    p = t.parameter(torch.ones(2, 2))
    compiled = t.compile(t.call(aten.relu.default, t.call(aten.mm.default, p, p)))
    t.execute(compiled)
    figures = backend.get_metrics()
    assert (1, 1, 1) == (figures["programs_compiled"], figures["executions"], figures["in_place_ops"])
    assert "programs_compiled: 1" in backend.create_metric_report()
    backend.prepare_to_exit()
    t.execute(compiled)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_graph_runs_on_cuda(backend: InterpreterBackend) -> None:
    backend.set_default_device_type(BackendDeviceType("CUDA"))
    device = BackendDevice(BackendDeviceType("CUDA"))
    x = torch.randn(4, 4)
    data = backend.make_computation_data_from_tensor(x, Shape(x.dtype, (4, 4)), device)
    t = Traced(backend)
    noise = t.call(aten.rand.default, (4, 4))
    out = t.call(aten.add.Tensor, t.call(aten.mul.Tensor, t.leaf(data), t.call(aten.full.default, (4, 4), 2.0)), noise)
    context = backend.create_lowering_context("test", device, t.nodes)
    context.add_result(out)
    (compiled,) = backend.compile([context.build()])
    backend.set_rng_seed(0)
    (found,) = backend.execute_computation(compiled, [data], device)
    generator = torch.Generator("cuda").manual_seed(0)
    expected = x.cuda() * 2.0 + torch.rand(4, 4, generator=generator, device="cuda")
    assert torch.equal(expected.cpu(), backend.make_tensor_from_computation_data(found))
