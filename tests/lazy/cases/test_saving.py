"""Saving, copying, pickling (case 23)."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchport
from lazy.cases.oracle import D, check, data, digits, made

Sync = Callable[[], None]


class Tied(nn.Module):
    """Two layers with one weight, and a buffer that is a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("part", self.whole[2:4])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) + self.part.sum()


def model_with_state(device: str = D) -> nn.Module:
    """A network with statistics, after one training step."""
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), device)
    optimizer = torch.optim.Adam(model.parameters())
    model(data(device, 5, 3)).square().sum().backward()
    optimizer.step()
    return model


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


# -- torch.save and torch.load ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("map_location", [None, "cpu", D, torch.device(D), lambda storage, where: storage])
def test_a_state_dict_is_saved_and_loaded(weights_only: bool, map_location: Any) -> None:
    state = model_with_state().state_dict()
    loaded = torch.load(saved(state), map_location=map_location, weights_only=weights_only)
    on_host = map_location == "cpu" or callable(map_location)
    for name, value in state.items():
        if not callable(map_location):
            assert loaded[name].device.type == ("cpu" if on_host else torch.device(D).type)
        torch.testing.assert_close(loaded[name].cpu(), value.cpu(), rtol=0, atol=0)
        assert loaded[name].stride() == value.stride()


def test_a_state_that_is_still_pending_is_saved_with_its_values() -> None:
    x = data(D, 4)
    y = x * 2 + 1
    loaded = torch.load(saved({"y": y, "v": y[1:]}), map_location="cpu", weights_only=True)
    torch.testing.assert_close(loaded["y"], data("cpu", 4) * 2 + 1)
    torch.testing.assert_close(loaded["v"], loaded["y"][1:])


def test_a_saved_state_goes_into_a_model_on_either_device() -> None:
    model = model_with_state()
    file = saved(model.state_dict())
    for device in ("cpu", D):
        other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(device)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        for p, q in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
            torch.testing.assert_close(q.cpu(), p.cpu(), rtol=0, atol=0)
            assert q.device.type == torch.device(device).type


def test_views_of_one_storage_share_it_again_after_loading() -> None:
    base = torch.arange(6.0, device=D)
    loaded = torch.load(saved([base, base[2:], base.view(2, 3).t()]), weights_only=True)
    assert len({t.untyped_storage()._cdata for t in loaded}) == 1
    loaded[0][3] = 50
    torchport.sync()
    torch.testing.assert_close(loaded[1].cpu(), torch.tensor([2.0, 50, 4, 5]))
    torch.testing.assert_close(loaded[2].cpu()[0, 1].item(), 50.0)
    assert loaded[2].stride() == (1, 3)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.int64, torch.bfloat16, torch.float64, torch.complex64], ids=str
)
def test_every_kind_of_tensor_is_saved(dtype: torch.dtype) -> None:
    tensors = [
        data(D, 2, 3, dtype=dtype),
        data(D, 2, 3, dtype=dtype).t()[1:],
        torch.zeros(0, 3, dtype=dtype, device=D),
        torch.ones((), dtype=dtype, device=D),
        torch.ones(1, dtype=dtype, device=D).expand(4),
    ]
    loaded = torch.load(saved(tensors), map_location="cpu", weights_only=True)
    for wanted, got in zip(tensors, loaded, strict=True):
        assert (wanted.dtype, wanted.shape, wanted.stride()) == (got.dtype, got.shape, got.stride())
        assert torch.equal(wanted.cpu(), got)


def test_parameters_and_gradients_keep_their_kind() -> None:
    p = nn.Parameter(data(D, 3))
    frozen = nn.Parameter(data(D, 3), requires_grad=False)
    q, r = torch.load(saved([p, frozen]), weights_only=True)
    assert isinstance(q, nn.Parameter)
    assert q.requires_grad
    assert not r.requires_grad


def test_an_optimizers_state_is_saved_and_training_goes_on_as_if_nothing_had_happened() -> None:
    def program(D: str, sync: Sync) -> object:
        def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
            model = made(lambda: nn.Linear(3, 2), D)
            return model, torch.optim.Adam(model.parameters(), lr=0.1)

        def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            optimizer.zero_grad()
            model(data(D, 4, 3)).square().sum().backward()
            optimizer.step()

        model, optimizer = fresh()
        step(model, optimizer)
        file = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        other, other_optimizer = fresh()
        checkpoint = torch.load(file, weights_only=True)
        other.load_state_dict(checkpoint["model"])
        other_optimizer.load_state_dict(checkpoint["optimizer"])
        for m, o in ((model, optimizer), (other, other_optimizer)):
            step(m, o)
        return [p.detach() for m in (model, other) for p in m.parameters()]

    check(program)


@pytest.mark.subprocess
@pytest.mark.parametrize("weights_only", [True, False])
def test_a_file_is_loaded_in_a_process_without_torchport(weights_only: bool, tmp_path: Path) -> None:
    model = model_with_state()
    file = tmp_path / "state.pt"
    torch.save(model.state_dict(), file)
    torch.save({k: v.cpu() for k, v in model.state_dict().items()}, tmp_path / "wanted.pt")
    script = f"""
import sys
sys.modules["torchport"] = None   # whoever imports it fails
import torch
loaded = torch.load({str(file)!r}, map_location="cpu", weights_only={weights_only})
wanted = torch.load({str(tmp_path / "wanted.pt")!r}, weights_only=True)
assert loaded.keys() == wanted.keys()
for name, value in wanted.items():
    assert loaded[name].device.type == "cpu" and torch.equal(loaded[name], value), name
print("loaded", len(loaded))
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"loaded {len(model.state_dict())}\n"


@pytest.mark.subprocess
def test_a_whole_module_that_was_moved_to_the_host_knows_nothing_of_us(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save(model_with_state().cpu(), file)
    script = f"""
import sys
sys.modules["torchport"] = None
import torch
model = torch.load({str(file)!r}, weights_only=False).eval()
print(tuple(model(torch.ones(2, 3)).shape))
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert done.stdout == "(2, 2)\n", done.stderr


# -- deepcopy and pickle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synced", [False, True])
def test_deepcopy_copies_values_and_shares_nothing(synced: bool) -> None:
    x = data(D, 3, 4)
    x.mul_(2)
    if synced:
        torchport.sync()
    y = copy.deepcopy(x)
    y.zero_()
    torch.testing.assert_close(x.cpu(), data("cpu", 3, 4) * 2)
    assert y.cpu().count_nonzero() == 0
    assert y.device == x.device


def test_deepcopy_keeps_ties_and_views() -> None:
    model = copy.deepcopy(Tied().to(D))
    assert model.first.weight is model.second.weight
    base = torch.arange(6.0, device=D)
    base_copy, view_copy = copy.deepcopy([base, base[2:]])
    base_copy[3] = 9
    assert view_copy.cpu().tolist() == [2, 9, 4, 5]
    assert base.cpu()[3] == 3


def test_deepcopy_of_a_trained_model_trains_on_separately() -> None:
    model = model_with_state()
    twin = copy.deepcopy(model)
    before = [p.detach().cpu() for p in model.parameters()]
    optimizer = torch.optim.SGD(twin.parameters(), lr=1.0)
    twin(data(D, 5, 3)).square().sum().backward()
    optimizer.step()
    for p, b in zip(model.parameters(), before, strict=True):
        assert torch.equal(p.detach().cpu(), b)
    assert not torch.equal(twin[0].weight.detach().cpu(), before[0])


def test_deepcopy_keeps_gradients_and_requires_grad() -> None:
    p = data(D, 3).requires_grad_()
    p.square().sum().backward()
    q = copy.deepcopy(p)
    assert q.requires_grad
    assert q.grad is not None
    assert q.grad is not p.grad
    torch.testing.assert_close(q.grad.cpu(), p.grad.cpu())


def test_deepcopy_of_a_result_is_refused_as_in_eager() -> None:
    y = data(D, 3).requires_grad_() * 2
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(y)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_goes_there_and_back(protocol: int) -> None:
    values = {"x": data(D, 2, 3).t(), "p": nn.Parameter(data(D, 2)), "i": digits(D, 9, 4), "d": torch.device(D)}
    loaded = pickle.loads(pickle.dumps(values, protocol))
    assert loaded["d"] == torch.device(D)
    for name in ("x", "p", "i"):
        assert loaded[name].device == values[name].device
        assert loaded[name].stride() == values[name].stride()
        torch.testing.assert_close(loaded[name].detach().cpu(), values[name].detach().cpu(), rtol=0, atol=0)


def test_pickle_of_a_module_keeps_ties() -> None:
    model = pickle.loads(pickle.dumps(Tied().to(D)))
    assert model.first.weight is model.second.weight
    assert model(data(D, 2, 3)).detach().cpu().isfinite().all()


# -- copies between devices ------------------------------------------------------------------------------------------


def there_and_back(D: str, sync: Sync) -> object:
    host = data("cpu", 4, 5)
    there = host.to(D, copy=True)
    host.zero_()  # the device has a copy of its own
    sync()
    return there, there.t().contiguous()


def non_blocking(D: str, sync: Sync) -> object:
    host = data("cpu", 64)
    there = host.to(D, non_blocking=True, copy=True)
    host.fill_(7)
    sync()
    return there


def strided_sources(D: str, sync: Sync) -> object:
    host = data("cpu", 4, 6)
    sources = host.t(), host[::2, 1:], host[:, 0], torch.ones(1).expand(5), host[0, 0]
    return [s.to(D, copy=True) for s in sources]


def copied_both_ways(D: str, sync: Sync) -> object:
    there = torch.zeros(3, 4, device=D)
    there.copy_(data("cpu", 4))
    sync()
    there[1].copy_(torch.arange(4))
    host = torch.empty(3, 4, dtype=torch.float64)
    host.copy_(there)
    return there, host.to(D)


def made_like_another(D: str, sync: Sync) -> object:
    x = data(D, 3, 4).t()
    return [torch.zeros_like(x), torch.ones_like(x, dtype=torch.int32), x.new_tensor([1, 2]), x.new_full((2,), 3)]


def from_python_and_numpy(D: str, sync: Sync) -> object:
    array = data("cpu", 3).numpy()
    x = torch.tensor([[1.0, 2.0]], device=D)
    y = torch.as_tensor(array, device=D)
    array[:] = 0
    sync()
    return x, y, torch.tensor(array, device=D), torch.asarray([1, 2], device=D)


@pytest.mark.parametrize(
    "program",
    [there_and_back, non_blocking, strided_sources, copied_both_ways, made_like_another],
    ids=lambda f: f.__name__,
)
def test_copying_between_devices(program: Callable[[str, Sync], object], barrier: str) -> None:
    check(program, barrier)


def test_a_tensor_made_from_a_numpy_array_is_a_copy() -> None:
    x, y, z, w = from_python_and_numpy(D, torchport.sync)
    assert x.cpu().tolist() == [[1.0, 2.0]]
    torch.testing.assert_close(y.cpu(), data("cpu", 3))
    assert z.cpu().tolist() == [0, 0, 0]
    assert w.cpu().tolist() == [1, 2]


def test_numpy_of_a_device_tensor_is_refused_with_eagers_advice() -> None:
    with pytest.raises(TypeError, match=r"cpu\(\)"):
        data(D, 3).numpy()
    assert data(D, 3).cpu().numpy().shape == (3,)


def test_what_was_read_is_the_callers_own() -> None:
    x = data(D, 4)
    first = x.cpu()
    first.zero_()
    torch.testing.assert_close(x.cpu(), data("cpu", 4))
    held = x.cpu()
    x.zero_()
    torchport.sync(wait=True)
    torch.testing.assert_close(held, data("cpu", 4))
