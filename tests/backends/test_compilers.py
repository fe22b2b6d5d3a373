"""The compilers behind the contract: training on the device, files that run without PyTorch, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import torchport
from backends.test_inductor_backend import cnn, mlp, train, transformer
from torchport.backend.compiler import CompilerBackend, CompilerInput

pytestmark = pytest.mark.slow
PACKAGES = {"onnxruntime": "onnxscript", "iree": "iree", "openvino": "openvino", "xla": "jax"}
NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is an extra"))
    for name, package in PACKAGES.items()
]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(name: str) -> Iterator[CompilerBackend]:
    torchport.use(name)
    made = torchport.get_backend()
    assert isinstance(made, CompilerBackend)
    made.fallbacks.clear()
    yield made
    torchport.use("interpreter")


@pytest.mark.parametrize("name", [n for n in NAMES if n.values[0] != "openvino"], indirect=True)  # for inference only
@pytest.mark.parametrize("build", [mlp, cnn, transformer])
def test_whole_steps_give_eagers_losses(backend: CompilerBackend, build: Any) -> None:
    fallen_back = torchport.executed_fallback_ops()
    assert train("port", build) == pytest.approx(train("cpu", build), rel=1e-4, abs=1e-5)
    assert backend.fallbacks == {}
    assert torchport.executed_fallback_ops() == fallen_back


@pytest.mark.parametrize("build", [mlp, cnn, transformer])
def test_a_lowered_model_gives_what_eager_gives(name: str, build: Any) -> None:
    torch.manual_seed(0)
    model, x = build()
    model.eval()
    lowered = torchport.to_backend(name, model, {"forward": torchport.CompileSpec(args=(x,))})
    torch.testing.assert_close(lowered(x), model(x), rtol=1e-4, atol=1e-5)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np, torchport_runtime
x = np.load(sys.argv[2])
y = torchport_runtime.load(sys.argv[1]).forward(x)
np.save(sys.argv[3], y)
"""


def test_a_file_runs_in_a_process_without_torch_and_in_one_with_it(name: str, tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    torch.manual_seed(0)
    model, x = cnn()
    model.eval()
    lowered = torchport.to_backend(name, model, {"forward": torchport.CompileSpec(args=(x,))}, partition=False)
    torch.testing.assert_close(lowered(x), model(x), rtol=1e-4, atol=1e-5)
    lowered.save(tmp_path / "m.tport")
    loaded = torchport.load(tmp_path / "m.tport")
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)
    np.save(tmp_path / "x.npy", x.numpy())
    arguments = [str(tmp_path / n) for n in ("m.tport", "x.npy", "y.npy")]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = torch.from_numpy(np.load(tmp_path / "y.npy"))
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_results_are_the_callers_own_and_threads_may_share_a_program(name: str) -> None:
    model, _ = mlp()
    model.eval()
    inputs = [torch.randn(8, 12) for _ in range(4)]
    lowered = torchport.to_backend(name, model, {"forward": torchport.CompileSpec(args=(inputs[0],))})
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


def test_inputs_that_are_views_or_written_later_do_no_harm(name: str) -> None:
    model, _ = mlp()
    model.eval()
    whole = torch.randn(12, 20)
    x = whole.t()[2:10]
    lowered = torchport.to_backend(name, model, {"forward": torchport.CompileSpec(args=(torch.randn(8, 12),))})
    expected = model(x)
    result = lowered(x)
    whole.zero_()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert lowered(x).shape == expected.shape


def test_values_on_the_device_outlive_the_tensors_that_they_came_from(backend: CompilerBackend) -> None:
    host = torch.arange(64.0)
    x = host.to("port")
    torchport.sync(wait=True)
    host.fill_(-1)
    del host
    y = x * 2
    x.add_(1)
    torchport.sync(wait=True)
    assert y.tolist() == [2.0 * i for i in range(64)]
    assert x.tolist() == [1.0 + i for i in range(64)]


@pytest.mark.parametrize("name", [n for n in NAMES if n.values[0] != "xla"], indirect=True)
def test_a_dtype_that_it_lacks_is_refused_with_a_reason_and_runs_all_the_same(backend: CompilerBackend) -> None:
    x = torch.ones(3, device="port", dtype=torch.bfloat16)
    assert (x * 2).tolist() == [2.0, 2.0, 2.0]
    assert "torch.bfloat16" in torchport.explain()


@pytest.mark.skipif(find_spec("onnxscript") is None, reason="onnxscript is an extra")
def test_a_model_that_computes_something_else_is_found_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchport.backends.onnxruntime import converting

    original = converting.to_onnx

    def wrong(program: CompilerInput) -> bytes:
        copy = deepcopy(program.module)
        for node in copy.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default):
            node.target = torch.ops.aten.sin.default
        copy.recompile()
        return original(CompilerInput(program.name, copy))

    monkeypatch.setattr(converting, "to_onnx", wrong)
    torchport.use("onnxruntime")
    try:
        x = torch.tensor([0.5, 1.0], device="port")
        with pytest.warns(UserWarning, match="differs from PyTorch's"), torchport.config.override(cache_dir="off"):
            result = (x.tanh() * 3).cpu()
    finally:
        torchport.use("interpreter")
    torch.testing.assert_close(result, torch.tensor([0.5, 1.0]).tanh() * 3)


@pytest.mark.parametrize("name", [n for n in NAMES if n.values[0] != "xla"], indirect=True)
def test_a_second_process_loads_the_programs_from_the_cache_on_disk(name: str, tmp_path: Path) -> None:
    script = (
        "import torch, torchport\n"
        f"torchport.use({name!r})\n"
        "x = torch.ones(3, device='port')\n"
        "print((x * 2 + 1).tolist(), torchport.metrics.counter_value('UncachedCompile'))\n"
    )
    environment = {**os.environ, "TORCHPORT_CACHE_DIR": str(tmp_path)}
    outputs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.strip())
    assert outputs == ["[3.0, 3.0, 3.0] 1", "[3.0, 3.0, 3.0] 0"]


@pytest.mark.skipif(find_spec("iree") is None, reason="iree is an extra")
def test_iree_compiles_for_another_machine() -> None:
    backend = torchport.backend.default_registry().registration("iree").new_instance()
    assert isinstance(backend, CompilerBackend)
    foreign = backend.with_options("target_triple=aarch64-linux-gnu,target_cpu=cortex-a78")
    module = make_fx(lambda x: (torch.ops.aten.mul.Tensor(x, x),), tracing_mode="fake")(torch.ones(4))
    program = CompilerInput("square", module, options=foreign.options, saved=True)
    code = foreign.serialize(foreign.compile_graph(program))
    elf = code[code.index(b"\x7fELF") :]
    assert int.from_bytes(elf[18:20], "little") == 183  # e_machine of AArch64, elf(5)


@pytest.mark.skipif(find_spec("iree") is None, reason="iree is an extra")
def test_options_in_a_name_are_those_of_all_methods_and_go_into_the_file(tmp_path: Path) -> None:
    model, x = mlp()
    model.eval()
    spec = {"forward": torchport.CompileSpec(args=(x,))}
    lowered = torchport.to_backend("iree{level=O2,driver=local-sync}", model, spec)
    lowered.save(tmp_path / "m.tport")
    torch.testing.assert_close(torchport.load(tmp_path / "m.tport")(x), model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(torchport.BackendOptionError, match="did you mean 'level'"):
        torchport.to_backend("iree{lvel=O2}", model, spec)
    with pytest.raises(torchport.BackendOptionError, match="has to be name=value"):
        torchport.to_backend("iree{fast}", model, spec)


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is an extra")
def test_openvino_computes_in_float32_unless_it_is_told_otherwise() -> None:
    torch.manual_seed(0)
    model = nn.Linear(256, 256)
    x = torch.randn(8, 256)
    full = torchport.to_backend("openvino", model, {"forward": torchport.CompileSpec(args=(x,))})
    assert (full(x) - model(x)).abs().max() < 1e-5


@pytest.mark.parametrize("name", list(PACKAGES))
def test_without_its_packages_it_says_what_to_install(name: str) -> None:
    script = (
        "import importlib.metadata as m\n"
        "real = m.version\n"
        "def version(name):\n"
        "    if name not in ('torchport', 'torch', 'numpy'):\n"
        "        raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
        "import torchport\n"
        f"print(torchport.backends()[{name!r}].reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f'pip install "torchport[{name}]"' in done.stdout
