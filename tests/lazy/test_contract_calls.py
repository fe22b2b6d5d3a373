"""The runtime calls each method of the contract when it should, and does what the answer says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import torchport
from torchport.backend import (
    BackendData,
    BackendDevice,
    BackendDeviceType,
    BackendRegistrar,
    Capabilities,
    Computation,
    IrBuilder,
    LazyTensor,
    LoweringContext,
    Node,
    Shape,
    Support,
)
from torchport.backends.interpreter import InterpreterBackend
from torchport.errors import ExecutionError

D = torchport.settings.device_name


class Witness(InterpreterBackend):
    """The interpreter, with answers that can be changed and calls that are counted."""

    held: ClassVar[set[int]] = set()
    refused: ClassVar[set[str]] = set()
    failure: BaseException | None = None
    calls: ClassVar[list[tuple[str, Any]]] = []

    def note(self, name: str, value: Any = None) -> None:
        Witness.calls.append((name, value))

    def set_rng_seed(self, seed: int) -> None:
        self.note("set_rng_seed", seed)
        super().set_rng_seed(seed)

    def initialize_aten_bindings(self) -> None:
        self.note("initialize_aten_bindings")

    def prepare_to_exit(self) -> None:
        self.note("prepare_to_exit")

    def get_ir_builder(self) -> IrBuilder:
        return _Builder()

    def should_sync_tensor(self, tensor: LazyTensor) -> bool:
        return tensor.unique_id not in Witness.held

    def supports(self, node: Node) -> Support:
        refused = node.call.name in Witness.refused
        return Support(not refused, "the witness refuses it")

    def create_data_placeholder(self, device: BackendDevice, shape: Shape) -> BackendData:
        self.note("create_data_placeholder", shape)
        return super().create_data_placeholder(device, shape)

    def get_computation_data_from_node(self, node: Node) -> BackendData | None:
        self.note("get_computation_data_from_node")
        return super().get_computation_data_from_node(node)

    def create_lowering_context(
        self,
        name: str,
        device: BackendDevice,
        post_order: Sequence[Node] = (),
        emission_map: dict[Node, Any] | None = None,
    ) -> LoweringContext:
        self.note("create_lowering_context", len(post_order))
        return super().create_lowering_context(name, device, post_order, emission_map)

    def get_compilation_devices(self, device: BackendDevice, devices: Sequence[BackendDevice]) -> list[BackendDevice]:
        return [device, BackendDevice(device.type, 7)]

    def compile(self, instances: list[Computation]) -> list[Computation]:
        self.note("compile", instances[0])
        if Witness.failure is not None:
            failure, Witness.failure = Witness.failure, None
            raise failure
        return super().compile(instances)

    def eager_fallback_device_type(self) -> BackendDeviceType:
        self.note("eager_fallback_device_type")
        return super().eager_fallback_device_type()

    def get_backend_device(self, device: torch.device) -> BackendDevice:
        self.note("get_backend_device", device)
        return super().get_backend_device(device)

    def create_metric_report(self) -> str:
        return "the witness reports"

    def get_metrics(self) -> Mapping[str, float]:
        return {"witness": 42.0}

    def get_computation_backend_text(self, computation: Computation) -> str:
        return f"witness of {len(computation.graph)} nodes"


class _Builder(IrBuilder):
    def make_generic(self, *args: Any, **kwargs: Any) -> Node:
        Witness.calls.append(("make_generic", args[0]))
        return super().make_generic(*args, **kwargs)


@pytest.fixture
def witness() -> Iterator[type[Witness]]:
    Witness.held, Witness.refused, Witness.failure, Witness.calls = set(), set(), None, []
    with BackendRegistrar("witness", Witness):
        torchport.use("witness")
        try:
            yield Witness
        finally:
            Witness.failure = None
            torchport.use("interpreter")


def called(name: str) -> list[Any]:
    return [value for n, value in Witness.calls if n == name]


def test_activation_initialises_seeds_and_ends(witness: type[Witness]) -> None:
    assert len(called("initialize_aten_bindings")) == 1
    assert called("set_rng_seed") == [torch.initial_seed() & 0xFFFF_FFFF_FFFF_FFFF] or len(called("set_rng_seed")) == 1
    torchport.use("interpreter")
    assert len(called("prepare_to_exit")) == 1
    torchport.use("witness")
    assert len(called("initialize_aten_bindings")) == 1


def test_the_seed_reaches_it(witness: type[Witness]) -> None:
    torch.manual_seed(1234)
    assert called("set_rng_seed")[-1] == 1234


def test_its_builder_makes_the_nodes(witness: type[Witness]) -> None:
    torch.ones(2, device=D) + 1
    assert [c.name for c in called("make_generic")] == ["aten.ones.default", "aten.add.Tensor"]


def test_a_tensor_that_it_holds_back_stays_pending_until_it_is_read(witness: type[Witness]) -> None:
    x = torch.ones(3, device=D)
    torchport.sync()
    kept, wanted = x + 1, x + 2
    lazy = kept.untyped_storage()._torchport  # type: ignore[attr-defined]
    witness.held.add(lazy.unique_id)
    torchport.sync()
    assert lazy.data is None
    assert wanted.untyped_storage()._torchport.data is not None  # type: ignore[attr-defined]
    assert kept.tolist() == [2, 2, 2]


def test_a_random_value_is_drawn_once_also_when_it_is_held_back(witness: type[Witness]) -> None:
    x = torch.rand(3, device=D)
    witness.held.add(x.untyped_storage()._torchport.unique_id)  # type: ignore[attr-defined]
    assert x.sum().item() == x.sum().item()


def test_lowering_compiling_and_placeholders(witness: type[Witness]) -> None:
    x = torch.ones(3, device=D)
    torchport.sync()
    Witness.calls.clear()
    (x * 2).cpu()
    (computation,) = called("compile")
    assert [7] == [d.ordinal for d in computation.devices][1:]
    assert called("create_lowering_context") == [2]
    assert called("create_data_placeholder") == [Shape(torch.float32, (3,))]
    assert len(called("get_computation_data_from_node")) == 1
    assert torch.device(D, 0) in called("get_backend_device")


def test_what_it_refuses_runs_where_it_says(witness: type[Witness]) -> None:
    witness.refused.add("aten.erfinv.default")
    assert torch.ones(2, device=D).mul(0).erfinv().tolist() == [0, 0]
    assert called("eager_fallback_device_type")
    assert "aten::erfinv" in torchport.executed_fallback_ops()


def test_its_figures_and_texts_are_shown(witness: type[Witness]) -> None:
    x = torch.ones(2, device=D) + 1
    assert "the witness reports" in torchport.metrics.report()
    assert torchport.metrics.snapshot()["witness"] == 42
    assert torchport.debug.backend_text(x) == "witness of 2 nodes"


def test_an_interrupted_compile_leaves_the_trace_as_it_is(witness: type[Witness]) -> None:
    w = torch.ones(2, device=D)
    torchport.sync()
    w.add_(1)
    drawn = torch.rand(3, device=D)
    same = drawn * 1
    witness.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        torchport.sync()
    assert (w * 2).tolist() == [4, 4]
    assert torch.equal(drawn.cpu(), same.cpu())


def test_a_failed_compile_spoils_what_it_was_for_and_nothing_else(witness: type[Witness]) -> None:
    w = torch.ones(2, device=D)
    torchport.sync()
    witness.failure = ValueError("this compiler gives up")
    w.add_(1)
    torchport.sync()
    with pytest.raises(ExecutionError, match="this compiler gives up"):
        torchport.wait_device_ops()
    assert w.tolist() == [1, 1]


def test_training_does_not_stand_still_silently_after_a_failed_step(witness: type[Witness]) -> None:
    model = nn.Linear(2, 2).to(D)
    optimizer = torch.optim.Adam(model.parameters())
    outcomes = []
    for i in range(3):
        if i == 0:
            witness.failure = MemoryError("none left")
        optimizer.zero_grad()
        model(torch.ones(1, 2, device=D)).sum().backward()
        optimizer.step()
        try:
            torchport.wait_device_ops()
            outcomes.append("trained")
        except ExecutionError:
            outcomes.append("told")
    # The optimizer's state was lost with the first step; each later one that needs it says so.
    assert outcomes == ["told", "told", "told"]


class BreaksLaw(InterpreterBackend):
    """Answers that the contract does not allow."""

    capabilities = Capabilities(random=True)

    def execute_computation(
        self, computation: Computation, arguments: list[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        return []


def test_a_missing_result_names_the_backend_and_the_law() -> None:
    with BackendRegistrar("breaks_law", BreaksLaw):
        torchport.use("breaks_law")
        try:
            with pytest.raises(ExecutionError, match=r"BreaksLaw\.execute_computation\(\) has to return one datum"):
                (torch.ones(2, device=D) + 1).cpu()
        finally:
            torchport.use("interpreter")


@pytest.mark.parametrize("name", ["register_hook", "register_post_accumulate_grad_hook"])
def test_an_exception_in_a_hook_reaches_the_program(name: str) -> None:
    w = torch.ones(3, device=D, requires_grad=True)
    getattr(w, name)(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (w * 2).sum().backward()
    (w * 3).sum()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_optimizers_step_as_on_the_cpu(kind: Any) -> None:
    got = []
    for device in ("cpu", D):
        p = torch.ones(3, device=device, requires_grad=True)
        optimizer = kind([p], lr=0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            p.square().sum().backward()
            optimizer.step()
        got.append(p.detach().cpu())
    torch.testing.assert_close(got[0], got[1])


def test_pinned_memory_and_shared_memory() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(4, 2))
    assert len(list(torch.utils.data.DataLoader(data, 2, pin_memory=True))) == 2
    with pytest.raises(RuntimeError, match="keep the data set on the CPU"):
        torch.UntypedStorage._new_shared(4, device=torch.device(D))


def test_use_wants_a_name() -> None:
    with pytest.raises(TypeError, match="takes the name of a backend"):
        torchport.use(None)  # type: ignore[arg-type]
