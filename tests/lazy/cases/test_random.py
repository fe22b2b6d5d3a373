"""Random numbers: drawn once, repeatable, never frozen into a compiled graph (cases 10 to 12)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchport
from lazy.cases.oracle import D as DEVICE
from lazy.cases.oracle import Program, check, counted, data, no_compile, run

Sync = Callable[[], None]

DROPOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.dropout(x, 0.5),
    lambda x: F.alpha_dropout(x, 0.5, training=True),
    lambda x: F.feature_alpha_dropout(x, 0.5, training=True),
    lambda x: F.dropout1d(x, 0.5),
    lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    lambda x: x * torch.rand_like(x),
    lambda x: F.rrelu(x, training=True),
    lambda x: F.gumbel_softmax(x, dim=1),
]
DROPOUT_NAMES = ["dropout", "alpha", "feature_alpha", "dropout1d", "bernoulli", "rand_like", "rrelu", "gumbel"]


# -- 10: dropout -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", DROPOUTS, ids=DROPOUT_NAMES)
def test_three_steps_draw_three_masks_and_compile_once(dropout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = data(DEVICE, 16, 32)
    outputs = []
    torch.manual_seed(0)
    for _ in range(2):
        outputs.append(dropout(x))
        torchport.sync()
    with no_compile():
        for _ in range(3):
            outputs.append(dropout(x))
            torchport.sync()
    for a, b in itertools.combinations([y.cpu() for y in outputs], 2):
        assert not torch.equal(a, b)


@pytest.mark.parametrize("dropout", DROPOUTS, ids=DROPOUT_NAMES)
@pytest.mark.parametrize("read_between", [False, True])
def test_forward_and_backward_share_one_mask(
    dropout: Callable[[torch.Tensor], torch.Tensor], read_between: bool, barrier: str
) -> None:
    def program(D: str, sync: Sync) -> object:
        x = data(D, 16, 32).requires_grad_()
        y = dropout(x)
        sync()
        if read_between:
            y.detach().cpu()
        y.sum().backward()
        return y, x.grad

    check(program, barrier)


def test_the_gradient_of_dropout_is_its_mask() -> None:
    x = data(DEVICE, 1000).requires_grad_()
    y = F.dropout(x, 0.25)
    y.detach().cpu()
    y.sum().backward()
    torch.testing.assert_close(y.detach().cpu(), (x.detach() * x.grad).cpu())


def test_masks_of_a_module_in_training_follow_the_seed(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Dropout(0.6)).to(D)
        x = data(D, 4, 8)
        outputs = []
        for _ in range(3):
            outputs.append(model(x))
            sync()
        model.eval()
        return [*outputs, model(x)]

    # the initial weights come from the host's generator, which on the CPU is the device's too: start both again
    def seeded(D: str, sync: Sync) -> object:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            state = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 8)).state_dict()
        model = nn.Sequential(nn.Linear(8, 8, device="meta"), nn.Dropout(0.3), nn.Linear(8, 8, device="meta"))
        model = model.to_empty(device=D)
        model.load_state_dict(state)
        torch.manual_seed(5)
        x = data(D, 4, 8)
        outputs = []
        for _ in range(3):
            outputs.append(model(x))
            sync()
        model.eval()
        return [*outputs, model(x)]

    check(seeded, barrier)
    first, second, third, evaluated = run(program, DEVICE, barrier)
    assert not torch.equal(first.cpu(), second.cpu())
    assert not torch.equal(second.cpu(), third.cpu())
    assert evaluated.shape == first.shape


# -- 11: one draw ----------------------------------------------------------------------------------------------------

DRAWS: dict[str, Callable[[str], torch.Tensor]] = {
    "rand": lambda D: torch.rand(5, device=D),
    "randn": lambda D: torch.randn(3, 40, device=D),
    "randint": lambda D: torch.randint(-3, 50, (20,), device=D),
    "randperm": lambda D: torch.randperm(30, device=D),
    "rand float64": lambda D: torch.rand(7, device=D, dtype=torch.float64),
    "randn complex": lambda D: torch.randn(7, device=D, dtype=torch.complex64),
    "rand_like": lambda D: torch.rand_like(torch.empty(4, 4, device=D)),
    "randn_like": lambda D: torch.randn_like(torch.empty(4, 4, device=D)),
    "randint_like": lambda D: torch.randint_like(torch.empty(9, device=D), 100),
    "bernoulli": lambda D: torch.bernoulli(torch.full((50,), 0.3, device=D)),
    "bernoulli p": lambda D: torch.empty(50, device=D).bernoulli_(0.3),
    "multinomial": lambda D: torch.multinomial(torch.tensor([0.1, 0.2, 0.7], device=D), 20, replacement=True),
    "multinomial without replacement": lambda D: torch.multinomial(torch.arange(1.0, 9.0, device=D), 5),
    "normal": lambda D: torch.normal(torch.arange(20.0, device=D), torch.ones(20, device=D)),
    "normal mean": lambda D: torch.normal(torch.arange(20.0, device=D), 2.0),
    "normal size": lambda D: torch.normal(1.0, 2.0, (9,), device=D),
    "poisson": lambda D: torch.poisson(torch.full((40,), 4.0, device=D)),
    "binomial": lambda D: torch.binomial(torch.full((30,), 9.0, device=D), torch.full((30,), 0.4, device=D)),
    "uniform_": lambda D: torch.empty(9, device=D).uniform_(-2, 3),
    "normal_": lambda D: torch.empty(40, device=D).normal_(1, 3),
    "exponential_": lambda D: torch.empty(9, device=D).exponential_(2.0),
    "geometric_": lambda D: torch.empty(9, device=D).geometric_(0.3),
    "cauchy_": lambda D: torch.empty(9, device=D).cauchy_(1.0, 2.0),
    "log_normal_": lambda D: torch.empty(9, device=D).log_normal_(),
    "random_": lambda D: torch.empty(9, device=D, dtype=torch.int64).random_(),
    "random_ range": lambda D: torch.empty(9, device=D, dtype=torch.int64).random_(3, 17),
    "into a view": lambda D: torch.zeros(4, 6, device=D)[:, ::2].normal_(),
    "gamma": lambda D: torch.distributions.Gamma(torch.full((9,), 2.0, device=D), 1.0).sample(),
    "dirichlet": lambda D: torch.distributions.Dirichlet(torch.full((4,), 2.0, device=D)).sample(),
    "categorical": lambda D: torch.distributions.Categorical(logits=torch.arange(5.0, device=D)).sample((20,)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_value_once_drawn_stays(name: str, barrier: str) -> None:
    torch.manual_seed(0)
    x = DRAWS[name](DEVICE)
    y = x * 2
    if barrier == "barrier after":
        torchport.sync()
    first = x.detach().cpu()
    if barrier == "barrier between":
        torchport.sync()
    second = x.detach().cpu()
    assert torch.equal(first, second)
    assert torch.equal(y.cpu(), first * 2)
    assert torch.equal(x.clone().cpu(), first)


@pytest.mark.parametrize("name", DRAWS)
def test_the_stream_equals_the_cpus_for_one_seed(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        first = DRAWS[name](D)
        sync()
        second = DRAWS[name](D)
        sync()
        return first, second, torch.rand(3, device=D)

    check(program, barrier)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_values_do_not_depend_on_the_order_of_reading(order: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    wanted = [torch.rand(5), torch.randn(4), torch.randperm(6)]
    torch.manual_seed(0)
    drawn = [torch.rand(5, device=DEVICE), torch.randn(4, device=DEVICE), torch.randperm(6, device=DEVICE)]
    for i in order:
        torch.testing.assert_close(drawn[i].cpu(), wanted[i])


def test_a_draw_that_nobody_reads_advances_the_stream_all_the_same(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        torch.rand(1000, device=D)
        sync()
        dead = torch.randn(3, device=D)
        del dead
        sync()
        return torch.rand(4, device=D)

    check(program, barrier)


def test_a_second_read_executes_nothing() -> None:
    x = torch.rand(5, device=DEVICE) + 1
    x.cpu()
    with counted("Execute") as executions:
        x.cpu()
        x.tolist()
    assert executions == [0]


MODULES: dict[str, Callable[[str], nn.Module]] = {
    "linear": lambda D: nn.Linear(5, 3, device=D),
    "conv": lambda D: nn.Conv2d(2, 3, 3, device=D),
    "embedding": lambda D: nn.Embedding(7, 3, device=D),
    "lstm": lambda D: nn.LSTM(3, 4, num_layers=2, device=D),
    "attention": lambda D: nn.MultiheadAttention(8, 2, device=D),
    "bilinear": lambda D: nn.Bilinear(2, 3, 4, device=D),
    "transformer layer": lambda D: nn.TransformerEncoderLayer(8, 2, 16, device=D),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_initialised_on_the_device_has_the_cpus_weights(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        module = MODULES[name](D)
        sync()
        return dict(module.state_dict())

    check(program, barrier)


INITS: dict[str, Callable[[torch.Tensor], object]] = {
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": nn.init.kaiming_uniform_,
    "kaiming_normal": nn.init.kaiming_normal_,
    "trunc_normal": nn.init.trunc_normal_,
    "orthogonal": nn.init.orthogonal_,
    "eye": nn.init.eye_,
}


@pytest.mark.parametrize("name", INITS)
def test_an_initialiser_fills_in_place_as_on_the_cpu(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        w = nn.Parameter(torch.zeros(6, 4, device=D))
        INITS[name](w)
        sync()
        return w

    check(program, barrier)


def test_a_weight_is_the_same_whoever_reads_it_first() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4, device=DEVICE)
    x = torch.ones(2, 4, device=DEVICE)
    y = model(x)
    through_the_model = y.detach().cpu()
    weight, bias = model.weight.detach().cpu(), model.bias.detach().cpu()
    torch.testing.assert_close(through_the_model, torch.ones(2, 4) @ weight.T + bias)
    assert torch.equal(model.state_dict()["weight"].cpu(), weight)


# -- 12: seeds and generators ----------------------------------------------------------------------------------------


def draws(D: str) -> list[torch.Tensor]:
    return [torch.rand(3, device=D), torch.randn(3, device=D), torch.randint(9, (3,), device=D)]


def test_manual_seed_repeats_the_stream(barrier: str) -> None:
    def once() -> list[torch.Tensor]:
        torch.manual_seed(11)
        drawn = draws(DEVICE)
        if barrier != "no barrier":
            torchport.sync()
        return drawn

    first, second = once(), once()
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.cpu(), b.cpu())


@pytest.mark.parametrize(
    "seed", [torch.manual_seed, torchport.manual_seed, lambda s: torch.get_device_module(DEVICE).manual_seed_all(s)]
)
def test_every_way_to_seed_reaches_the_device(seed: Callable[[int], object]) -> None:
    seed(4)
    first = torch.rand(3, device=DEVICE)
    seed(5)
    other = torch.rand(3, device=DEVICE)
    seed(4)
    again = torch.rand(3, device=DEVICE)
    assert torch.equal(first.cpu(), again.cpu())
    assert not torch.equal(first.cpu(), other.cpu())


def test_seeding_does_not_change_what_was_drawn_before() -> None:
    torch.manual_seed(1)
    before = torch.rand(3, device=DEVICE)
    torch.manual_seed(2)
    after = torch.rand(3, device=DEVICE)
    torch.manual_seed(1)
    assert torch.equal(before.cpu(), torch.rand(3))
    torch.manual_seed(2)
    assert torch.equal(after.cpu(), torch.rand(3))


WITH_GENERATOR: dict[str, Callable[[str, torch.Generator | None], torch.Tensor]] = {
    "rand": lambda D, g: torch.rand(4, device=D, generator=g),
    "randn": lambda D, g: torch.randn(20, device=D, generator=g),
    "randint": lambda D, g: torch.randint(50, (4,), device=D, generator=g),
    "randperm": lambda D, g: torch.randperm(9, device=D, generator=g),
    "normal_": lambda D, g: torch.empty(4, device=D).normal_(generator=g),
    "uniform_": lambda D, g: torch.empty(4, device=D).uniform_(0, 1, generator=g),
    "bernoulli": lambda D, g: torch.bernoulli(torch.full((9,), 0.5, device=D), generator=g),
    "multinomial": lambda D, g: torch.multinomial(torch.ones(4, device=D), 3, generator=g),
    "exponential_": lambda D, g: torch.empty(4, device=D).exponential_(generator=g),
    "random_": lambda D, g: torch.empty(4, dtype=torch.int64, device=D).random_(0, 99, generator=g),
    "normal": lambda D, g: torch.normal(torch.zeros(4, device=D), 1.0, generator=g),
}


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_a_cpu_generator_is_honoured(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        generator = torch.Generator().manual_seed(42)
        drawn = []
        for _ in range(2):
            drawn.append(WITH_GENERATOR[name](D, generator))
            sync()
        generator.manual_seed(42)
        drawn.append(WITH_GENERATOR[name](D, generator))
        return [*drawn, torch.rand(2, device=D)]

    check(program, barrier)


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_no_generator_is_the_devices_own(name: str, barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        drawn = WITH_GENERATOR[name](D, None)
        sync()
        return drawn, torch.rand(2, device=D)

    check(program, barrier)


def test_a_cpu_generator_advances_at_once_and_can_be_saved() -> None:
    generator = torch.Generator().manual_seed(1)
    torch.rand(4, device=DEVICE, generator=generator)
    state = generator.get_state()
    next_on_device = torch.rand(4, device=DEVICE, generator=generator)
    generator.set_state(state)
    assert torch.equal(next_on_device.cpu(), torch.rand(4, generator=generator))


def test_a_generator_of_the_device_is_refused_and_the_message_says_what_to_do() -> None:
    # torch.Generator asks the device's hooks in C++, which a device registered from Python cannot answer.
    with pytest.raises(RuntimeError, match=r'torch\.Generator\("cpu"\)'):
        torch.Generator(device=DEVICE)


def test_the_devices_random_state_can_be_taken_and_given_back() -> None:
    module = torch.get_device_module(DEVICE)
    state = module.get_rng_state()
    assert state.dtype is torch.uint8
    assert state.device.type == "cpu"
    first = torch.rand(5, device=DEVICE)
    module.set_rng_state(state)
    second = torch.rand(5, device=DEVICE)
    assert torch.equal(first.cpu(), second.cpu())


def test_fork_rng_leaves_the_stream_where_it_was(barrier: str) -> None:
    def program(D: str, sync: Sync) -> object:
        before = torch.rand(3, device=D)
        with torch.random.fork_rng(device_type=D):
            torch.manual_seed(77)
            inside = torch.rand(3, device=D)
            sync()
        return before, inside, torch.rand(3, device=D)

    torch.manual_seed(0)
    wanted = [torch.rand(3), torch.rand(3)]
    before, inside, after = run(program, DEVICE, barrier)
    torch.testing.assert_close(before.cpu(), wanted[0])
    torch.testing.assert_close(after.cpu(), wanted[1])
    torch.manual_seed(77)
    torch.testing.assert_close(inside.cpu(), torch.rand(3))


def checkpointed(D: str, sync: Sync, use_reentrant: bool) -> object:
    w = data(D, 8, 8).requires_grad_()
    x = data(D, 4, 8, seed=2).requires_grad_()

    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.tanh(x @ w), 0.5)

    y = checkpoint(block, x, use_reentrant=use_reentrant)
    sync()
    y = checkpoint(block, y, use_reentrant=use_reentrant)
    sync()
    y.pow(2).sum().backward()
    return y, x.grad, w.grad


def checkpointed_reentrant(D: str, sync: Sync) -> object:
    return checkpointed(D, sync, True)


def checkpointed_without_reentrance(D: str, sync: Sync) -> object:
    return checkpointed(D, sync, False)


@pytest.mark.parametrize("program", [checkpointed_reentrant, checkpointed_without_reentrance])
def test_a_checkpointed_dropout_recomputes_the_same_mask(program: Program, barrier: str) -> None:
    check(program, barrier)


def drawn_in_a_layout(D: str, sync: Callable[[], None]) -> object:
    x = data(D, 4, 3, 4, 4).to(memory_format=torch.channels_last)
    t = data(D, 4, 6).abs().clamp(0, 1).t().clone()
    sync()
    return (
        F.dropout(x, 0.5),
        F.dropout1d(x[0], 0.5),
        torch.bernoulli(t),
        t.bernoulli(0.3),
        torch.empty_like(t).bernoulli_(0.3),
        torch.empty_like(x).uniform_(),
        torch.rand_like(x),
        F.alpha_dropout(x, 0.5, training=True),
    )


def test_random_numbers_are_drawn_in_the_order_of_the_layout(barrier: str) -> None:
    check(drawn_in_a_layout, barrier)
