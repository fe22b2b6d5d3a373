"""ONNX Runtime behind the contract: training on the device, files that run without PyTorch, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is an extra")
pytest.importorskip("onnxscript", reason="onnxscript is an extra")

import torch

import torchport
from backends.test_inductor_backend import cnn, mlp, train, transformer
from torchport.backend.compiler import CompilerInput
from torchport.backends.onnxruntime import OnnxruntimeBackend, converting

pytestmark = pytest.mark.slow


@pytest.fixture
def backend() -> Iterator[OnnxruntimeBackend]:
    torchport.use("onnxruntime")
    made = torchport.get_backend()
    assert isinstance(made, OnnxruntimeBackend)
    made.fallbacks.clear()
    yield made
    torchport.use("interpreter")


@pytest.mark.parametrize("build", [mlp, cnn, transformer])
def test_whole_steps_give_eagers_losses(backend: OnnxruntimeBackend, build: Any) -> None:
    fallen_back = torchport.executed_fallback_ops()
    assert train("port", build) == pytest.approx(train("cpu", build), rel=1e-4, abs=1e-5)
    assert backend.fallbacks == {}
    assert torchport.executed_fallback_ops() == fallen_back


def test_a_file_runs_in_a_process_without_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = cnn()
    model.eval()
    lowered = torchport.to_backend("onnxruntime", model, {"forward": torchport.CompileSpec(args=(x,))}, partition=False)
    torch.testing.assert_close(lowered(x), model(x), rtol=1e-4, atol=1e-5)
    lowered.save(tmp_path / "m.tport")
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, torchport_runtime\n"
        f"x = np.frombuffer(bytes.fromhex({x.numpy().tobytes().hex()!r}), np.float32).reshape({tuple(x.shape)})\n"
        f"y = torchport_runtime.load({str(tmp_path / 'm.tport')!r}).forward(x)\n"
        "print(y.astype(np.float64).ravel().tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = torch.tensor(eval(done.stdout), dtype=torch.float32)
    torch.testing.assert_close(found, model(x).flatten(), rtol=1e-4, atol=1e-5)


def test_half_precision_of_brains_is_refused_with_a_reason_and_runs_all_the_same(backend: OnnxruntimeBackend) -> None:
    x = torch.ones(3, device="port", dtype=torch.bfloat16)
    assert (x * 2).tolist() == [2.0, 2.0, 2.0]
    assert "does not compute in torch.bfloat16" in torchport.explain()


def test_a_model_that_computes_something_else_is_found_when_it_is_compiled(
    backend: OnnxruntimeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = converting.to_onnx

    def wrong(program: CompilerInput) -> bytes:
        copy = deepcopy(program.module)
        for node in copy.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default):
            node.target = torch.ops.aten.sin.default
        copy.recompile()
        return original(CompilerInput(program.name, copy))

    monkeypatch.setattr(converting, "to_onnx", wrong)
    x = torch.tensor([0.5, 1.0], device="port")
    with pytest.warns(UserWarning, match="differs from PyTorch's"), torchport.config.override(cache_dir="off"):
        result = (x.tanh() * 3).cpu()
    torch.testing.assert_close(result, torch.tensor([0.5, 1.0]).tanh() * 3)


def test_results_are_the_callers_own_and_threads_may_share_a_model() -> None:
    model, _ = mlp()
    model.eval()
    inputs = [torch.randn(8, 12) for _ in range(4)]
    lowered = torchport.to_backend("onnxruntime", model, {"forward": torchport.CompileSpec(args=(inputs[0],))})
    results: dict[int, torch.Tensor] = {}

    def work(i: int) -> None:
        for _ in range(30):
            results[i] = lowered(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, x in enumerate(inputs):
        torch.testing.assert_close(results[i], model(x), rtol=1e-4, atol=1e-5)
        results[i].zero_()
    torch.testing.assert_close(lowered(inputs[0]), model(inputs[0]), rtol=1e-4, atol=1e-5)


def test_a_second_process_loads_the_models_from_the_cache_on_disk(tmp_path: Path) -> None:
    script = (
        "import torch, torchport\n"
        "torchport.use('onnxruntime')\n"
        "x = torch.ones(3, device='port')\n"
        "print((x * 2 + 1).tolist(), torchport.metrics.counter_value('UncachedCompile'))\n"
    )
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, "TORCHPORT_CACHE_DIR": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.strip())
    assert outputs == ["[3.0, 3.0, 3.0] 1", "[3.0, 3.0, 3.0] 0"]
