"""Captured steps against the same steps on the CPU: what they change, what they return, when they are replayed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchport
from backends.test_compiler_backend import ModuleBackend


@pytest.fixture(params=["interpreter", "module"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with torchport.BackendRegistrar("module", ModuleBackend):
        torchport.use(request.param)
        yield request.param
        torchport.use("interpreter")


def counts() -> tuple[int, int]:
    return torchport.metrics.counter_value("TraceStep"), torchport.metrics.counter_value("ReplayStep")


class Counted:
    """How many traces and replays happened in a block."""

    def __enter__(self) -> Counted:
        self._before = counts()
        return self

    def __exit__(self, *exception: Any) -> None:
        after = counts()
        self.traces, self.replays = after[0] - self._before[0], after[1] - self._before[1]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 3))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(count)
    ]


def training(
    device: str, optimizer: Callable[[Any], Any], schedule: Callable[[Any], Any], steps: int, wrap: Callable[[Any], Any]
) -> tuple[list[float], dict[str, Any], dict[str, Any]]:
    torch.manual_seed(0)
    model = net().to(device)
    opt = optimizer(model.parameters())
    scheduler = schedule(opt)
    torch.manual_seed(1)

    @wrap
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    losses = []
    for x, y in batches(steps):
        losses.append(step(x.to(device), y.to(device)))
        scheduler.step()
    return [loss.item() for loss in losses], model.state_dict(), opt.state_dict()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam-loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adam-capturable": lambda p: torch.optim.Adam(p, lr=0.01, capturable=p is not None),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
}
SCHEDULES = {
    "constant": lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=300),
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 10, 0.5),
    "warmup": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1, 1.0, 20),
}


def assert_same_training(
    optimizer: Callable[[Any], Any], schedule: Callable[[Any], Any], steps: int, most_traces: int
) -> None:
    ours = training("cpu", optimizer, schedule, steps, lambda f: f)
    with Counted() as counted:
        theirs = training("port", optimizer, schedule, steps, torchport.capture)
    assert theirs[0] == pytest.approx(ours[0], rel=2e-4, abs=2e-5)
    for name, value in ours[1].items():
        torch.testing.assert_close(theirs[1][name].cpu(), value, rtol=1e-3, atol=1e-4)
    for index, state in ours[2]["state"].items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(theirs[2]["state"][index][name].cpu(), value, rtol=1e-3, atol=1e-4)
    assert counted.traces <= most_traces, counted.traces
    assert counted.replays == steps - counted.traces


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd-momentum"])
def test_200_steps_with_a_scheduler_are_replayed_and_equal_the_cpus(
    backend: str, optimizer: str, schedule: Callable[[Any], Any]
) -> None:
    # Two or three traces to begin with, one more where a rate begins to change, and those at calls 4, 8, 16, … 128.
    assert_same_training(OPTIMIZERS[optimizer], schedule, 200, most_traces=13)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_other_optimizers_are_replayed_too(backend: str, optimizer: Callable[[Any], Any]) -> None:
    if optimizer is OPTIMIZERS["adam-capturable"]:
        assert_same_training(lambda p: torch.optim.Adam(list(p), lr=0.01), SCHEDULES["constant"], 40, most_traces=9)
        return
    assert_same_training(optimizer, SCHEDULES["cosine"], 40, most_traces=10)


def capture_and_warnings(function: Any, **options: Any) -> tuple[Any, list[str]]:
    """A captured step that puts its warnings into a list."""
    found: list[str] = []
    step = torchport.capture(function, **options)

    def call(*args: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = step(*args)
        found.extend(str(w.message) for w in caught)
        return result

    return call, found


def test_a_number_that_python_counts_is_never_frozen(backend: str) -> None:
    w = torch.zeros(3, device="port")
    count = [0]

    def step() -> torch.Tensor:
        count[0] += 1
        w.add_(0.5 * count[0])
        return w.sum()

    call, found = capture_and_warnings(step)
    results = [call().item() for _ in range(6)]
    total, expected = 0.0, []
    for i in range(1, 7):
        total += 0.5 * i
        expected.append(3 * total)
    assert results == pytest.approx(expected)
    (message,) = found
    assert "aten.add" in message
    assert f"{__file__}:" in message
    assert "(1.0, then 1.5)" in message or "(0.5, then 1.0)" in message


@pytest.mark.parametrize(
    "read",
    [lambda t: t.item(), lambda t: print(t, end=""), lambda t: bool(t > 0), lambda t: t.cpu(), lambda t: t.tolist()],
    ids=["item", "print", "if", "cpu", "tolist"],
)
def test_a_step_that_reads_a_value_is_traced_and_the_line_is_named(
    backend: str, read: Callable[[torch.Tensor], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    w = torch.ones(1, device="port")

    def step() -> None:
        w.mul_(2)
        read(w.sum())

    call, found = capture_and_warnings(step)
    with Counted() as counted:
        for _ in range(5):
            call()
    assert w.item() == 32
    assert counted.replays == 0
    assert len(found) == 1
    assert "a value is read at" in found[0]
    assert __file__ in found[0]


def test_control_flow_that_depends_on_a_value_takes_the_right_branch(backend: str) -> None:
    w = torch.zeros(1, device="port")

    def step() -> None:
        if w.item() < 3:
            w.add_(1)
        else:
            w.sub_(3)

    call, _ = capture_and_warnings(step)
    values = []
    for _ in range(9):
        call()
        values.append(w.item())
    assert values == [1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_arguments_that_alternate_have_a_program_each(backend: str) -> None:
    @torchport.capture
    def step(x: torch.Tensor, scale: float, mode: str) -> torch.Tensor:
        return (x * scale if mode == "times" else x + scale).sum()

    with Counted() as counted:
        for i in range(12):
            n = 2 + i % 2
            x = torch.ones(n, device="port") * i
            assert step(x, 3.0, "times").item() == pytest.approx(n * i * 3)
            assert step(x, 3.0, "plus").item() == pytest.approx(n * (i + 3))
            assert step(x, 4.0, "plus").item() == pytest.approx(n * (i + 4))
    assert counted.replays >= 12


def test_gradients_that_accumulate_over_calls_and_are_cleared_outside(backend: str) -> None:
    def run(device: str, wrap: Callable[[Any], Any]) -> list[list[float]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @wrap
        def backward(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss.detach()

        found = []
        for i in range(24):
            x = torch.full((3, 4), float(i)).to(device) / 10
            backward(x)
            if i % 4 == 3:
                found.append(model.weight.grad.flatten().tolist())
                optimizer.step()
                optimizer.zero_grad(set_to_none=i % 8 == 3)
        return [*found, model.weight.flatten().tolist()]

    with Counted() as counted:
        ours = run("port", torchport.capture)
    for a, b in zip(ours, run("cpu", lambda f: f), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-6)
    assert counted.replays > 8


def test_results_are_new_tensors_each_time_and_keep_their_values(backend: str) -> None:
    w = torch.zeros(2, device="port")

    @torchport.capture
    def step() -> dict[str, Any]:
        w.add_(1)
        return {"double": w * 2, "parts": (w + 1, w[:1] * 3), "none": None, "word": "x"}

    results = [step() for _ in range(7)]
    for i, result in enumerate(results, 1):
        assert result["double"].tolist() == [2.0 * i] * 2
        assert result["parts"][0].tolist() == [1.0 + i] * 2
        assert result["parts"][1].tolist() == [3.0 * i]
        assert result["none"] is None
        assert result["word"] == "x"
    assert isinstance(results[-1]["parts"], tuple)


def test_a_result_that_is_a_view_or_an_argument_or_a_parameter(backend: str) -> None:
    w = torch.arange(6.0, device="port")

    @torchport.capture
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        w.add_(1)
        return (w * 2).view(2, 3).t(), x, w

    for i in range(1, 6):
        x = torch.ones(1, device="port")
        view, same, parameter = step(x)
        assert view.shape == (3, 2)
        assert view.tolist() == ((torch.arange(6.0) + i) * 2).view(2, 3).t().tolist()
        assert same is x
        assert parameter is w


def test_views_see_the_new_values_and_copies_keep_the_old_ones(backend: str) -> None:
    w = torch.zeros(4, device="port")
    view = w[1:3]
    copies = []

    @torchport.capture
    def step() -> None:
        w.add_(1)

    for i in range(1, 8):
        before = w._version
        copies.append(w.clone())
        step()
        assert w._version > before
        assert view.tolist() == [float(i)] * 2
    assert [c[0].item() for c in copies] == [0, 1, 2, 3, 4, 5, 6]


def test_autograd_notices_that_a_replay_has_written_a_tensor_it_saved(backend: str) -> None:
    w = torch.ones(2, device="port")

    @torchport.capture
    def step() -> None:
        w.mul_(2)

    for _ in range(3):
        step()
    x = torch.ones(2, device="port", requires_grad=True)
    y = (x * w).sum()
    step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


class Changing(nn.Module):
    """A module with things to change between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.linear = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.linear(x)) * self.scale


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "eval": lambda m, o: m.eval(),
    "attribute": lambda m, o: setattr(m, "scale", 5.0),
    "dropout": lambda m, o: setattr(m.drop, "p", 0.9),
    "weight decay": lambda m, o: o.param_groups[0].update(weight_decay=0.5),
    "learning rate": lambda m, o: o.param_groups[0].update(lr=0.5),
    "frozen": lambda m, o: m.linear.bias.requires_grad_(False),
    "replaced": lambda m, o: setattr(m, "linear", nn.utils.skip_init(nn.Linear, 3, 3, device=m.linear.weight.device)),
    "data": lambda m, o: setattr(m.linear.weight, "data", torch.full((3, 3), 0.25).to(m.linear.weight.device)),
    "in place": lambda m, o: m.linear.weight.data.mul_(3),
    "hook": lambda m, o: m.linear.register_forward_hook(lambda mod, args, out: out * 2),
    "no change": lambda m, o: None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_between_two_steps_takes_effect(backend: str, change: Callable[[Any, Any], Any]) -> None:
    def run(device: str, wrap: Callable[[Any], Any]) -> list[float]:
        torch.manual_seed(0)
        model = Changing().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(3)

        @wrap
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        found = []
        x = torch.ones(4, 3).to(device)
        for i in range(14):
            if i == 6:
                torch.manual_seed(4)
                change(model, optimizer)
            if i == 6 and change is CHANGES["replaced"]:
                with torch.no_grad():
                    for p in model.linear.parameters():
                        p.fill_(0.1)
            found.append(step(x))
        return [f.item() for f in found]

    assert run("port", torchport.capture) == pytest.approx(run("cpu", lambda f: f), rel=1e-4, abs=1e-6)


def test_modes_of_torch_are_part_of_what_a_program_is_for(backend: str) -> None:
    model = nn.Linear(3, 3).to("port")

    @torchport.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).detach()

    x = torch.ones(2, 3, device="port")
    for _ in range(4):
        plain = step(x)
        with torch.autocast("port", torch.bfloat16):
            half = step(x)
        with torch.no_grad():
            silent = step(x)
        assert (plain.dtype, half.dtype, silent.dtype) == (torch.float32, torch.bfloat16, torch.float32)
        assert not silent.requires_grad


def test_a_state_that_is_replaced_at_each_call_is_traced_and_the_reason_told(backend: str) -> None:
    class Cell:
        def __init__(self) -> None:
            self.h = torch.zeros(2, device="port")

        def step(self, x: torch.Tensor) -> None:
            self.h = self.h * 0.5 + x

    cell = Cell()
    call, found = capture_and_warnings(cell.step)
    x = torch.ones(2, device="port")
    expected = 0.0
    for _ in range(6):
        call(x)
        expected = expected * 0.5 + 1
    assert cell.h.tolist() == pytest.approx([expected] * 2)
    assert any("replaced by another at each call" in message for message in found)


def test_a_state_that_is_written_in_place_is_replayed(backend: str) -> None:
    h = torch.zeros(2, device="port")

    @torchport.capture
    def step(x: torch.Tensor) -> None:
        h.mul_(0.5).add_(x)

    with Counted() as counted:
        for _ in range(7):
            step(torch.ones(2, device="port"))
    assert counted.replays == 4
    assert h.tolist() == pytest.approx([2 - 0.5**6] * 2)


def test_an_exception_in_a_step_leaves_all_usable(backend: str) -> None:
    w = torch.zeros(2, device="port")
    fail = [False]

    @torchport.capture
    def step() -> None:
        w.add_(1)
        if fail[0]:
            raise KeyError("no")
        w.add_(1)

    for _ in range(4):
        step()
    fail[0] = True
    for _ in range(3):
        step()  # replayed: what Python would do is not looked at
    assert w.tolist() == [14.0, 14.0]
    with pytest.raises(KeyError):
        step()  # the eighth call is traced
    fail[0] = False
    for _ in range(3):
        step()
    assert w.tolist() == [21.0, 21.0]


def test_a_captured_step_inside_another_is_part_of_it_and_a_barrier_inside_is_its_end(backend: str) -> None:
    w = torch.zeros(1, device="port")

    @torchport.capture
    def inner() -> None:
        w.add_(1)

    @torchport.capture
    def outer() -> None:
        inner()
        torchport.sync(wait=True)
        w.mul_(2)

    value = 0.0
    for _ in range(7):
        outer()
        value = (value + 1) * 2
    assert w.item() == value
    for _ in range(3):
        inner()
    assert w.item() == value + 3


def test_a_loss_whose_backward_is_outside_is_not_captured_and_trains(backend: str) -> None:
    w = torch.ones(2, device="port", requires_grad=True)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return (w * x).sum()

    call, found = capture_and_warnings(forward)
    for _ in range(4):
        w.grad = None
        call(torch.full((2,), 3.0, device="port")).backward()
        assert w.grad is not None
        assert w.grad.tolist() == [3.0, 3.0]
    assert "backward() was not called in the step" in found[0]


def test_batches_on_the_cpu_are_copied_at_each_call(backend: str) -> None:
    w = torch.zeros(2, device="port")

    @torchport.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        w.add_(x.to("port"))
        return w * 1

    with Counted() as counted:
        for i in range(7):
            expected = float(sum(range(i + 1)))
            assert step(torch.full((2,), float(i))).tolist() == [expected] * 2
    assert counted.replays == 4


def test_a_constant_that_the_step_makes_is_kept_and_one_that_changes_is_noticed(backend: str) -> None:
    values = iter(range(100))

    def fixed() -> torch.Tensor:
        return torch.tensor([1.0, 2.0], device="port") * 2

    def changing() -> torch.Tensor:
        return torch.tensor([float(next(values)), 2.0], device="port") * 2

    step = torchport.capture(fixed)
    with Counted() as counted:
        assert [step().tolist() for _ in range(6)] == [[2.0, 4.0]] * 6
    assert counted.replays == 3
    call, _ = capture_and_warnings(changing)
    assert [call().tolist() for _ in range(6)] == [[2.0 * i, 4.0] for i in range(6)]


def test_a_method_has_a_program_for_each_object(backend: str) -> None:
    class Trainer:
        def __init__(self, start: float) -> None:
            self.w = torch.full((1,), start, device="port")

        @torchport.capture
        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.w.add_(x)
            return self.w * 1

    a, b = Trainer(0.0), Trainer(100.0)
    one = torch.ones(1, device="port")
    for i in range(1, 7):
        assert a.step(one).item() == i
        assert b.step(one).item() == 100 + i


def test_a_change_that_no_guard_sees_is_found_when_the_step_is_verified(backend: str) -> None:
    config = {"scale": 2.0}
    w = torch.ones(1, device="port")

    def step() -> torch.Tensor:
        return w * config["scale"]

    call, found = capture_and_warnings(step)
    for _ in range(5):
        assert call().item() == 2.0
    config["scale"] = 3.0
    results = [call().item() for _ in range(8)]
    assert results[2:] == [3.0] * 6  # traced again at call 8
    assert any("given a number that Python computes anew" in message for message in found)


def test_a_scheduler_inside_the_step_is_refused(backend: str) -> None:
    w = torch.ones(1, device="port", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step() -> None:
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.step()
        schedule.step()

    call, found = capture_and_warnings(step)
    for _ in range(5):
        call()
    assert w.item() == pytest.approx(1 - (1 + 0.5 + 0.25 + 0.125 + 0.0625))
    assert any("SGD's lr is changed inside the step" in message for message in found)


def test_with_capture_off_every_call_is_traced(backend: str) -> None:
    w = torch.zeros(1, device="port")
    step = torchport.capture(lambda: w.add_(1))
    with torchport.config.override(capture=False), Counted() as counted:
        for _ in range(5):
            step()
    assert (counted.traces, counted.replays) == (0, 0)
    assert w.item() == 5


def test_a_long_run_of_replays_keeps_no_memory(backend: str) -> None:
    model = nn.Linear(16, 16).to("port")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    @torchport.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    def held() -> dict[str, int]:
        gc.collect()
        kinds = (torch.Tensor, torchport.LazyTensor, torchport.Node, torchport.Value)
        return {k.__name__: sum(type(o) is k for o in gc.get_objects()) for k in kinds}

    x = torch.ones(4, 16, device="port")
    for _ in range(70):
        step(x)
    before = held()
    for _ in range(50):
        step(x)
    assert held() == before


def test_what_it_cannot_be_asked_for_is_said() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        torchport.capture(lambda: None, verify_every=1)


def test_explain_lists_what_was_traced_again_and_why(backend: str) -> None:
    model = Changing().to("port").eval()
    step = torchport.capture(lambda x: model(x).detach())
    x = torch.ones(1, 3, device="port")
    for _ in range(5):
        step(x)
    model.scale = 7.0
    step(x)
    assert "Changing.scale was 2.0, is 7.0" in torchport.explain()
