"""The device as generic PyTorch code meets it: its module, ``torch.accelerator``, generators, names and indices."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import torchport
from lazy.cases.oracle import D, data
from torchport.errors import SettingError

NAME = torch.device(D).type


@pytest.fixture
def module() -> object:
    """``torch.port``."""
    return torch.get_device_module(D)


# -- names -----------------------------------------------------------------------------------------------------------


def test_the_device_has_its_name_everywhere() -> None:
    x = torch.ones(2, device=D)
    assert str(x.device) == f"{NAME}:0"
    assert torch.device(D) == torch.device(NAME)
    assert torch._C._get_privateuse1_backend_name() == NAME
    assert getattr(torch, NAME) is torch.get_device_module(D)
    assert torch.get_device_module(torch.device(D, 0)) is torch.get_device_module(D)
    assert x.untyped_storage().device == x.device
    assert x.get_device() == 0
    assert torch.ones(1, device=f"{NAME}:0").device == x.device


def test_tensors_modules_and_storages_have_the_generated_methods() -> None:
    host = torch.ones(2)
    there = getattr(host, NAME)()
    assert there.device.type == NAME
    assert getattr(there, f"is_{NAME}")
    assert not getattr(host, f"is_{NAME}")
    assert not there.is_cpu
    assert not there.is_cuda
    assert not there.is_meta
    assert getattr(nn.Linear(2, 2), NAME)().weight.device.type == NAME
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1)])
    assert packed.to(D).data.device.type == NAME


@pytest.mark.parametrize("factory", [torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn])
@pytest.mark.parametrize("where", [D, f"{NAME}:0", torch.device(D), torch.device(D, 0)])
def test_every_way_to_name_the_device(factory: object, where: object) -> None:
    x = factory(2, 3, device=where)  # type: ignore[operator]
    assert x.device == torch.device(D, 0)


def test_the_default_device() -> None:
    before = torch.get_default_device()
    torch.set_default_device(D)
    try:
        assert torch.get_default_device().type == NAME
        assert torch.ones(2).device.type == NAME
        assert torch.tensor([1, 2]).device.type == NAME
        assert nn.Linear(2, 2).weight.device.type == NAME
        assert torch.arange(3).sum().item() == 3
    finally:
        torch.set_default_device(None if before.type == "cpu" else before)
    assert torch.ones(2).device.type == "cpu"


def test_the_device_as_a_context() -> None:
    with torch.device(D):
        x = torch.full((2,), 3.0)
        y = torch.ones(2, device="cpu")
    assert x.device.type == NAME
    assert y.device.type == "cpu"


# -- the module ------------------------------------------------------------------------------------------------------


def test_the_module_answers_what_generic_code_asks(module: object) -> None:
    assert module.is_available() is True
    assert module.device_count() == 1
    assert module.current_device() == 0
    module.set_device(0)
    module.set_device(D)
    module.set_device(torch.device(D, 0))
    assert module.is_initialized() in (True, False)
    assert module._is_in_bad_fork() is False
    assert module.synchronize() is None
    assert isinstance(module.get_device_name(), str)
    with module.device(0):
        assert torch.ones(1, device=D).item() == 1


def test_the_module_tells_amp_dtypes_and_memory(module: object) -> None:
    assert torch.bfloat16 in module.get_amp_supported_dtype()
    kept = torch.ones(1000, device=D)
    torchport.sync(wait=True)
    for figure in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        value = getattr(module, figure)()
        assert isinstance(value, int)
        assert value >= 0
    assert module.max_memory_allocated() >= module.memory_allocated()
    module.empty_cache()
    module.reset_peak_memory_stats()
    assert kept.sum().item() == 1000


def test_memory_grows_with_a_tensor_and_shrinks_without_it(module: object) -> None:
    torchport.sync(wait=True)
    before = module.memory_allocated()
    x = torch.ones(1 << 18, device=D)
    torchport.sync(wait=True)
    assert module.memory_allocated() - before >= 1 << 20
    del x
    assert module.memory_allocated() - before < 1 << 20


def test_the_memory_figures_have_their_names_elsewhere_too(module: object) -> None:
    torchport.sync(wait=True)
    free, total = module.mem_get_info()
    assert 0 < free <= total
    assert module.get_device_properties(0).total_memory == total
    assert module.get_device_properties(0).name == module.get_device_name()
    stats = module.memory_stats()
    assert stats["allocated_bytes.all.current"] == module.memory_allocated()
    assert stats["allocated_bytes.all.peak"] == module.max_memory_allocated() == stats["reserved_bytes.all.peak"]
    module.reset_accumulated_memory_stats()
    module.empty_host_cache()


def test_a_backend_that_does_not_know_its_memory_says_so(module: object) -> None:
    torchport.use("null")
    try:
        with pytest.raises(NotImplementedError, match="NullBackend does not tell how much memory there is"):
            module.mem_get_info()
        assert module.get_device_properties().total_memory == 0
    finally:
        torchport.use("interpreter")


def test_random_state_functions_agree(module: object) -> None:
    states = module.get_rng_state_all()
    assert len(states) == 1
    assert torch.equal(states[0], module.get_rng_state())
    module.manual_seed(9)
    first = torch.rand(2, device=D).cpu()
    module.set_rng_state_all(states)
    module.manual_seed_all(9)
    assert torch.equal(torch.rand(2, device=D).cpu(), first)
    assert module.initial_seed() == 9


def test_a_seed_from_the_system_changes_the_stream(module: object) -> None:
    module.manual_seed(1)
    module.seed()
    first = torch.rand(4, device=D).cpu()
    module.seed()
    assert not torch.equal(torch.rand(4, device=D).cpu(), first)


def test_functions_that_torch_calls_on_every_device() -> None:
    torch.manual_seed(0)
    with torch.random.fork_rng(device_type=NAME):
        torch.rand(2, device=D)
    torch.utils.data.DataLoader([torch.ones(1)], num_workers=0)
    assert torch.utils.data.default_collate([torch.ones(2, device=D)] * 2).shape == (2, 2)
    assert torch.is_autocast_enabled(NAME) is False
    assert torch.get_autocast_dtype(NAME) in (torch.float16, torch.bfloat16)


# -- torch.accelerator -----------------------------------------------------------------------------------------------


def test_torch_accelerator_answers() -> None:
    accelerator = torch.accelerator
    assert accelerator.is_available()
    current = accelerator.current_accelerator()
    assert current is not None
    assert current.type == NAME
    assert accelerator.current_accelerator(check_available=True) is not None
    assert accelerator.device_count() == 1
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    with accelerator.device_index(0):
        assert accelerator.current_device_index() == 0


def test_torch_accelerator_synchronizes_and_waits_for_what_was_launched() -> None:
    x = torch.ones(300, 300, device=D)
    for _ in range(5):
        x = x @ x / 300
    torchport.sync()
    torch.accelerator.synchronize()
    torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(torch.device(D))
    assert x[0, 0].item() == pytest.approx(1.0)


def test_torch_accelerator_memory_figures() -> None:
    assert torch.accelerator.memory_allocated() >= 0
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] >= 0
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()  # in PyTorch's C++ it ends the process
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()


def test_torch_accelerator_tells_the_dtypes_that_can_live_there() -> None:
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.complex64, torch.bool} <= supported
    assert torch.qint8 not in supported
    for dtype in supported:
        assert torch.empty(2, dtype=dtype, device=D).dtype is dtype


def test_streams_and_events_are_accepted() -> None:
    stream = torch.accelerator.current_stream()
    assert stream.device.type == NAME
    torch.Stream(device=D)
    x = torch.ones(2, device=D)
    x.record_stream(stream)
    with torch.accelerator.current_stream() as s, torch.get_device_module(D).stream(s):
        torch.get_device_module(D).Event(D).record(s)
        torch.get_device_module(D).set_stream(torch.get_device_module(D).default_stream())
    assert x.sum().item() == 2


# -- generators ------------------------------------------------------------------------------------------------------


def test_a_generator_of_the_device_is_refused_with_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r'torch\.Generator\("cpu"\)'):
        torch.Generator(device=D)


def test_a_generator_of_another_device_is_used_as_it_is() -> None:
    generator = torch.Generator().manual_seed(6)
    wanted = torch.rand(4, generator=torch.Generator().manual_seed(6))
    assert torch.equal(torch.rand(4, device=D, generator=generator).cpu(), wanted)


def test_what_takes_a_generator_in_the_library() -> None:
    generator = torch.Generator().manual_seed(6)
    weight = nn.init.normal_(torch.empty(3, device=D), generator=generator)
    wanted = nn.init.normal_(torch.empty(3), generator=torch.Generator().manual_seed(6))
    assert torch.equal(weight.cpu(), wanted)


def test_fork_rng_restores_both_the_hosts_and_the_devices_stream() -> None:
    torch.manual_seed(0)
    wanted_host, wanted_device = torch.rand(2), torch.rand(2, device=D).cpu()
    torch.manual_seed(0)
    with torch.random.fork_rng(device_type=NAME):
        torch.rand(5)
        torch.rand(5, device=D)
        torch.manual_seed(3)
    assert torch.equal(torch.rand(2), wanted_host)
    assert torch.equal(torch.rand(2, device=D).cpu(), wanted_device)


# -- indices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [1, 3, 7])
def test_a_device_that_is_not_there_is_an_error_that_says_how_many_there_are(index: int) -> None:
    where = f"{NAME}:{index}"
    for make in (
        lambda: torch.ones(2, device=where),
        lambda: torch.empty(2, device=where),
        lambda: torch.tensor([1.0], device=where),
        lambda: torch.rand(2, device=where),
        lambda: torch.ones(2).to(where),
        lambda: torch.ones(2, device=D).to(where),
        lambda: nn.Linear(2, 2).to(where),
        lambda: torch.get_device_module(D).set_device(index),
        lambda: torch.zeros_like(torch.ones(2), device=where),
        lambda: torch.accelerator.set_device_index(index),
    ):
        with pytest.raises(RuntimeError) as caught:
            make()
        assert where in str(caught.value) or str(index) in str(caught.value)
        assert re.search(r"\b(one|1)\b.* device", str(caught.value)), "the message says how many there are"


def test_a_failed_move_leaves_the_module_where_it_was() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError):
        model.to(f"{NAME}:5")
    assert model.weight.device.type == "cpu"
    assert model(torch.ones(1, 2)).shape == (1, 2)


# -- what prints and compares ----------------------------------------------------------------------------------------


def test_a_tensor_prints_its_device_once() -> None:
    text = repr(torch.ones(2, device=D))
    assert text == f"tensor([1., 1.], device='{NAME}:0')"


def test_tensors_compare_by_value() -> None:
    x = data(D, 3)
    assert torch.equal(x, x.clone())
    assert torch.allclose(x, x + 1e-9)
    assert not torch.equal(x, x + 1)
    torch.testing.assert_close(x, x.clone())
    with pytest.raises(AssertionError):
        torch.testing.assert_close(x, x + 1)


def test_python_conversions_read_the_value() -> None:
    x = torch.tensor(3, device=D)
    assert int(x) == 3
    assert float(x) == 3.0
    assert bool(x)
    assert [10, 20, 30, 40][x] == 40
    assert f"{torch.tensor(2.5, device=D):.2f}" == "2.50"
    assert list(torch.arange(3, device=D)) == [0, 1, 2]
    assert 2 in torch.arange(3, device=D)
    assert len(torch.ones(4, 2, device=D)) == 4
    assert x.is_nonzero()
    assert range(10)[x] == 3


@pytest.mark.subprocess
def test_another_name_for_the_device_is_refused_once_it_is_registered() -> None:
    with pytest.raises(SettingError, match="TORCHPORT_DEVICE_NAME"):
        torchport.settings.device_name = "chip"


@pytest.mark.subprocess
def test_the_name_is_read_from_the_environment() -> None:
    script = "import torch, torchport\nprint((torch.ones(2, device='chip') + 1).device)\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TORCHPORT_DEVICE_NAME": "chip"},
    )
    assert done.stdout == "chip:0\n", done.stderr
