"""Inductor behind the contract: whole steps, files, options, and the internals of PyTorch that it leans on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchport
from torchport.backends.inductor import InductorBackend, InductorOptions
from torchport.backends.inductor.availability import missing_compiler

pytestmark = [
    pytest.mark.skipif(bool(missing_compiler()), reason=f"Inductor needs a C++ compiler: {missing_compiler()}"),
    pytest.mark.slow,
]


@pytest.fixture
def inductor() -> Iterator[InductorBackend]:
    torchport.use("inductor")
    backend = torchport.get_backend()
    assert isinstance(backend, InductorBackend)
    yield backend
    torchport.use("interpreter")


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 5)), torch.randn(8, 12)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    return (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 5),
        ),
        torch.randn(8, 3, 8, 8),
    )


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(96, 5)), torch.randn(8, 6, 16)


def train(device: str, build: Any) -> list[float]:
    torch.manual_seed(0)
    model, x = build()
    y = torch.randint(0, 5, (8,))
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    torch.manual_seed(1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("build", [mlp, cnn, transformer])
def test_whole_steps_give_eagers_losses(inductor: InductorBackend, build: Any) -> None:
    fallen_back = torchport.executed_fallback_ops()
    assert train("port", build) == pytest.approx(train("cpu", build), rel=1e-5, abs=1e-5)
    assert inductor.fallbacks == {}
    assert torchport.executed_fallback_ops() == fallen_back


def test_parameters_are_updated_in_their_own_buffers_and_earlier_values_stay(inductor: InductorBackend) -> None:
    p = torch.ones(1000, device="port", requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.5)
    held = None
    for step in range(4):
        (p * 1.0).sum().backward()
        if step == 2:
            held = p.detach().clone()
        optimizer.step()
        optimizer.zero_grad()
        torchport.sync(wait=True)
    assert p.detach().cpu()[0].item() == -1.0
    assert held is not None
    assert held.cpu()[0].item() == 0.0


def test_results_have_the_strides_that_eager_gives(inductor: InductorBackend) -> None:
    x = torch.randn(3, 4, 5)
    for f in (lambda t: t.permute(2, 0, 1) * 2, lambda t: t.transpose(0, 2).contiguous() + 1, lambda t: t.mT.exp()):
        ours, theirs = f(x.to("port")), f(x)
        assert ours.cpu().stride() == ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs)


def test_a_file_is_run_in_a_process_without_a_compiler(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = cnn()
    model.eval()
    lowered = torchport.to_backend("inductor", model, {"forward": torchport.CompileSpec(args=(x,))}, partition=False)
    torch.testing.assert_close(lowered(x), model(x))
    lowered.save(tmp_path / "m.tport")
    torch.save((x, model(x)), tmp_path / "io.pt")
    script = (
        "import torch, torchport\n"
        f"x, y = torch.load({str(tmp_path / 'io.pt')!r})\n"
        f"lowered = torchport.load({str(tmp_path / 'm.tport')!r})\n"
        "torch.testing.assert_close(lowered(x), y)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={"PATH": ""})
    assert done.returncode == 0, done.stderr


def test_a_lowered_program_may_be_called_by_threads_at_once() -> None:
    model, _ = mlp()
    model.eval()
    inputs = [torch.randn(8, 12) for _ in range(4)]
    lowered = torchport.to_backend("inductor", model, {"forward": torchport.CompileSpec(args=(inputs[0],))})
    results: dict[int, torch.Tensor] = {}

    def work(i: int) -> None:
        for _ in range(50):
            results[i] = lowered(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, x in enumerate(inputs):
        torch.testing.assert_close(results[i], model(x))


def test_options_are_typed_and_given_by_name() -> None:
    backend = InductorBackend().with_options("cpp_wrapper=true")
    assert backend.options == InductorOptions(cpp_wrapper=True)
    with pytest.raises(torchport.BackendOptionError, match="did you mean 'max_autotune'"):
        backend.with_options({"max_autotun": True})


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    availability = InductorBackend.availability()
    assert not availability
    assert "apt-get install g++" in availability.reason
