"""The base class for compilers: what follows from a ``compile_graph`` alone, here that of a "compiler" that returns the
decomposed module itself, so that every difference is the base's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchport
from torchport.backend import Support
from torchport.backend.compiler import CompilerBackend, CompilerInput, Executable
from torchport.ir.call import Call, operand
from torchport.lazy.tensor import lazy_tensor_of

ATEN = torch.ops.aten


class ModuleBackend(CompilerBackend):
    """Runs the decomposed module as it is."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.programs: list[CompilerInput] = []

    def compile_graph(self, program: CompilerInput) -> Executable:
        self.programs.append(program)
        return program.module


@pytest.fixture
def backend() -> Iterator[ModuleBackend]:
    made = ModuleBackend()
    with torchport.BackendRegistrar("module", made):
        torchport.use("module")
        torchport.manual_seed(0)
        yield made
        torchport.use("interpreter")


def train(device: str, build: Any, optimizer: Any, steps: int = 6) -> list[float]:
    torch.manual_seed(0)
    model = build()
    x, y = torch.randn(16, 12), torch.randint(0, 5, (16,))
    model, x, y = model.to(device), x.to(device), y.to(device)
    opt = optimizer(model.parameters())
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01, foreach=False, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.NAdam(p, lr=0.01),
    ],
    ids=["sgd", "adamw", "adam-amsgrad-loop", "rmsprop", "adagrad", "nadam"],
)
def test_a_training_loop_with_dropout_gives_eagers_losses(backend: ModuleBackend, optimizer: Any) -> None:
    fallen_back = torchport.executed_fallback_ops()
    assert train("port", dropout_net, optimizer) == pytest.approx(train("cpu", dropout_net, optimizer), rel=1e-5)
    assert backend.fallbacks == {}
    assert torchport.executed_fallback_ops() == fallen_back


def test_numbers_that_change_at_each_step_compile_nothing_after_the_second(backend: ModuleBackend) -> None:
    p = torch.ones(3, device="port", requires_grad=True)
    opt = torch.optim.Adam([p], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    counts = []
    for _ in range(6):
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()
        schedule.step()
        torchport.sync(wait=True)
        counts.append(len(backend.programs))
    assert counts[1:] == [counts[1]] * 5


def test_a_constant_that_changes_becomes_an_input_where_the_operator_takes_it_as_a_tensor(
    backend: ModuleBackend,
) -> None:
    x = torch.tensor([1.0, 9.0], device="port")
    for low in (2.0, 3.0, 4.0, 5.0):
        assert x.clamp_min(low).cpu().tolist() == [low, 9.0]
    # The constant 2, then an input for all others.
    assert len(backend.programs) == 2


def test_a_constant_that_no_operator_takes_as_a_tensor_is_compiled_for_each_value(backend: ModuleBackend) -> None:
    x = torch.tensor([-1.0, 2.0], device="port")
    for slope in (0.1, 0.2, 0.1):
        torch.testing.assert_close(F.leaky_relu(x, slope).cpu(), F.leaky_relu(torch.tensor([-1.0, 2.0]), slope))
    assert len(backend.programs) <= 2


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (3,)], ids=["0-dim", "1-dim"])
def test_a_number_promotes_as_in_eager(backend: ModuleBackend, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    host = torch.ones(shape, dtype=dtype)
    x = host.to("port")
    for f in (
        lambda t: t + 2,
        lambda t: t * 0.3,
        lambda t: t / 3,
        lambda t: 5 - t.to(torch.float32),
        lambda t: torch.add(t, t, alpha=3) if t.dtype is not torch.bool else t,
        lambda t: t == 1.0,
        lambda t: torch.where(t.bool(), t, 7),
        lambda t: torch.full((2,), 2.5).to(t.device) + t.sum(),
    ):
        torch.testing.assert_close(f(x).cpu(), f(host))


def test_random_numbers_are_eagers_for_the_same_seed_and_go_on_over_a_state(backend: ModuleBackend) -> None:
    def draw(device: str) -> list[torch.Tensor]:
        torch.manual_seed(5)
        x = torch.empty(4, device=device)
        return [
            t.cpu()
            for t in (
                torch.rand(3, device=device),
                torch.randn(2, 2, device=device),
                torch.randint(0, 9, (4,), device=device),
                x.normal_(2.0, 3.0).clone(),
                x.uniform_(1.0, 2.0).clone(),
                F.dropout(torch.ones(8, device=device), 0.5),
                torch.randperm(6, device=device),
                torch.multinomial(torch.ones(5, device=device), 3),
            )
        ]

    for ours, theirs in zip(draw("port"), draw("cpu"), strict=True):
        assert torch.equal(ours, theirs)
    state = torch.port.get_rng_state()
    first = torch.rand(3, device="port").cpu()
    torch.port.set_rng_state(state)
    assert torch.equal(first, torch.rand(3, device="port").cpu())


class RefusesTanh(ModuleBackend):
    """Has no ``tanh``."""

    def supports_operator(self, node: torch.fx.Node) -> Support:
        return Support(node.target is not ATEN.tanh.default, "there is no tanh here")


def test_an_operator_that_is_refused_runs_eagerly_and_is_counted() -> None:
    with torchport.BackendRegistrar("refuses", RefusesTanh):
        torchport.use("refuses")
        before = torchport.executed_fallback_ops().get("aten::tanh", 0)
        x = torch.tensor([0.5, 1.0], device="port")
        torch.testing.assert_close((x.tanh() * 2).cpu(), torch.tensor([0.5, 1.0]).tanh() * 2)
        assert torchport.executed_fallback_ops()["aten::tanh"] == before + 1
        torchport.use("interpreter")


def test_a_refused_operator_is_left_out_of_the_parts_of_a_lowered_module() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    x = torch.randn(4, 3)
    with torchport.BackendRegistrar("refuses", RefusesTanh):
        lowered = torchport.to_backend("refuses", model, {"forward": torchport.CompileSpec(args=(x,))})
        assert "there is no tanh here" in lowered.explain()
        torch.testing.assert_close(lowered(x), model(x))


class Broken(ModuleBackend):
    """Fails to compile."""

    def compile_graph(self, program: CompilerInput) -> Executable:
        raise RuntimeError("out of registers")


def test_what_the_compiler_fails_on_runs_in_the_interpreter_with_a_warning() -> None:
    broken = Broken()
    with torchport.BackendRegistrar("broken", broken):
        torchport.use("broken")
        x = torch.tensor([1.0, 2.0], device="port")
        with pytest.warns(UserWarning, match="out of registers"):
            assert (x * 3 + 1).cpu().tolist() == [4.0, 7.0]
        (reason,) = set(broken.fallbacks.values())
        assert reason == "RuntimeError: out of registers"
        torchport.use("interpreter")


def test_a_lowered_module_is_saved_as_text_where_programs_cannot_be_and_compiled_when_loaded(
    backend: ModuleBackend, tmp_path: Any
) -> None:
    model = dropout_net().eval()
    x = torch.randn(4, 12)
    lowered = torchport.to_backend("module", model, {"forward": torchport.CompileSpec(args=(x,))})
    lowered.save(tmp_path / "m.tport")
    compiled = len(backend.programs)
    loaded = torchport.load(tmp_path / "m.tport")
    assert len(backend.programs) == compiled + 1
    torch.testing.assert_close(loaded(x), model(x))


def test_results_are_the_callers_own_also_where_they_are_inputs_or_one_value_twice(backend: ModuleBackend) -> None:
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            y = x * 2
            return y, y, x

    x = torch.ones(3)
    lowered = torchport.to_backend("module", Same(), {"forward": torchport.CompileSpec(args=(x,))})
    a, b, c = lowered(x)
    a.add_(1)
    assert b.tolist() == [2.0, 2.0, 2.0]
    c.add_(1)
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_an_output_that_looks_at_the_memory_of_an_input_or_of_another_output_is_a_copy(backend: ModuleBackend) -> None:
    """Whoever has one of them may donate its buffer while somebody else holds the other."""
    x = torch.arange(12.0, device="port").view(3, 4) + 0
    torchport.sync()
    row, last = x[1].clone(), x.split(2)[1].clone()
    y = x * 2
    again = y.t().clone()
    torchport.sync(wait=True)
    handles = [lazy_tensor_of(t).data.handle for t in (x, row, last, y, again)]
    assert 5 == len({handle.untyped_storage().data_ptr() for handle in handles})
    assert [4.0, 5.0, 6.0, 7.0] == row.tolist()
    assert [[8.0, 9.0, 10.0, 11.0]] == last.tolist()


def test_the_input_of_a_compiler_is_functional_core_aten_with_the_users_lines(backend: ModuleBackend) -> None:
    x = torch.randn(2, 3, 8, 8, device="port")
    F.batch_norm(F.conv2d(x, torch.randn(4, 3, 3, 3, device="port")), None, None, training=True).sum().item()
    program = backend.programs[-1]
    calls = [n for n in program.module.graph.nodes if n.op == "call_function" and n.target.__module__ != "_operator"]
    assert all(torch.Tag.core in n.target.tags for n in calls), [str(n.target) for n in calls]
    assert not any(n.target._schema.is_mutable for n in calls)
    assert any(__file__ in (n.meta.get("stack_trace") or "") for n in calls)
    assert [x.device.type for x in program.inputs] == ["cpu"] * len(program.inputs)


def test_threads_compute_at_once(backend: ModuleBackend) -> None:
    model = dropout_net().eval()
    x = torch.randn(4, 12)
    lowered = torchport.to_backend("module", model, {"forward": torchport.CompileSpec(args=(x,))})
    inputs = [torch.randn(4, 12) for _ in range(8)]
    results: dict[int, torch.Tensor] = {}

    def work(i: int) -> None:
        for _ in range(20):
            results[i] = lowered(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, given in enumerate(inputs):
        torch.testing.assert_close(results[i], model(given))


def test_a_backend_on_the_device_may_be_left_and_taken_up_again(backend: ModuleBackend) -> None:
    x = torch.arange(4.0, device="port")
    y = x + 1
    torchport.use("interpreter")
    z = y * 2
    torchport.use("module")
    assert (z - x).cpu().tolist() == [2.0, 3.0, 4.0, 5.0]


def test_threads_may_ask_and_compile_at_once(backend: ModuleBackend) -> None:
    errors: list[BaseException] = []
    threads = [threading.Thread(target=support_of_linear, args=(backend, n, errors)) for n in range(2, 10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []


def support_of_linear(backend: ModuleBackend, n: int, errors: list[BaseException]) -> None:
    shapes = torchport.Shape(torch.float32, (2, n)), torchport.Shape(torch.float32, (3, n))
    out = torchport.Shape(torch.float32, (2, 3))
    call = Call(ATEN.linear.default, (operand(0), operand(1)), inputs=shapes, outputs=(out,))
    try:
        for _ in range(5):
            backend._support.clear()
            assert backend.supports(torchport.Node(call))
    except BaseException as error:  # noqa: BLE001 - the test's thread tells it
        errors.append(error)
