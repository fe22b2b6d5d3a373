"""The runtime in a process where PyTorch cannot be imported."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import torchport_runtime
from aot.subjects import Blocks, Cache, Nested, Switched, registered, spec_of
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.to_backend import to_backend
from torchport_runtime.backends import Availability, RuntimeBackend, unregister_backend
from torchport_runtime.errors import BackendNotAvailableError, InvalidArgumentError, UnknownBackendError
from torchport_runtime.interpreter.backend import NumpyBackend


@pytest.mark.subprocess
def test_a_process_without_torch_loads_and_calls_a_module(tmp_path: Path) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    to_backend("interpreter", module, spec_of(x)).save(tmp_path / "m.tport")
    np.savez(tmp_path / "io.npz", x=x.numpy(), wanted=module(x).detach().numpy())
    script = f"""
        import sys

        class Refuses:
            def find_spec(self, name, *rest):
                if name.partition(".")[0] in ("torch", "torchport"):
                    raise ImportError("there is no torch here")

        sys.meta_path.insert(0, Refuses())
        import numpy, torchport_runtime
        io = numpy.load({str(tmp_path / "io.npz")!r})
        program = torchport_runtime.load({str(tmp_path / "m.tport")!r})
        numpy.testing.assert_allclose(program.forward(io["x"]), io["wanted"], rtol=1e-5, atol=1e-6)
        assert not [m for m in sys.modules if m.partition(".")[0] in ("torch", "scipy", "safetensors", "pickle5")]
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_nested_results_dynamic_sizes_and_state(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Nested().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    spec = {"forward": CompileSpec((torch.randn(3, 4),), {"scale": 3.0}, {"x": {0: batch}, "scale": None})}
    to_backend("interpreter", module, spec).save(tmp_path / "m.tport")
    program = torchport_runtime.load(tmp_path / "m.tport")
    for n in (2, 5):
        x = torch.randn(n, 4)
        wanted, got = module(x, scale=3.0), program(x.numpy(), scale=3.0)
        np.testing.assert_allclose(got[0]["y"], wanted[0]["y"].detach().numpy(), rtol=1e-5, atol=1e-6)
        assert got[0]["rest"][:2] == (None, 3)
        assert type(got[0]["rest"][2]) is list
        assert got[2].second == 2 * n
        assert type(got[2]).__name__ == "Pair"
    assert int(program.state["calls"]) == 2
    program.reset()
    assert int(program.state["calls"]) == 0
    with pytest.raises(InvalidArgumentError, match=r"float64\[2, 4\]; the method was captured for f32\[batch, 4\]"):
        program(np.zeros((2, 4)), scale=3.0)
    with pytest.raises(InvalidArgumentError, match="batch from 2 to 64"):
        program(np.zeros((1, 4), np.float32), scale=3.0)
    with pytest.raises(AttributeError, match="the methods are forward"):
        program.backwards()


def test_a_cache_goes_on(tmp_path: Path) -> None:
    module = Cache().eval()
    to_backend("interpreter", module, spec_of(torch.randn(4))).save(tmp_path / "m.tport")
    program = torchport_runtime.load(tmp_path / "m.tport")
    for _ in range(3):
        x = torch.randn(4)
        with torch.no_grad():
            np.testing.assert_allclose(program.forward(x.numpy()), module(x).numpy(), rtol=1e-5, atol=1e-6)


class Half(NumpyBackend):
    """numpy, with a switch."""

    def __init__(self) -> None:
        self.reason = ""
        self.broken = False

    def is_available(self) -> Availability:
        return Availability(not self.reason, self.reason)

    def load(self, payload: memoryview, options: object):
        part = super().load(payload, options)

        def run(arrays, numbers):
            if self.broken:
                raise RuntimeError("out of luck")
            return part(arrays, numbers)

        return run


def test_backends_that_are_missing_broken_or_fail(tmp_path: Path) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    wanted = module(x).detach().numpy()
    with registered("half", Switched()):
        to_backend("half", module, spec_of(x)).save(tmp_path / "error.tport")
        to_backend("half", module, spec_of(x), fallback="interpreter").save(tmp_path / "falls.tport")
    with pytest.raises(UnknownBackendError, match=r"there is no backend 'half'.*torchport_runtime\.register_backend"):
        torchport_runtime.load(tmp_path / "error.tport")
    half = Half()
    torchport_runtime.register_backend("half", half)
    try:
        np.testing.assert_allclose(torchport_runtime.load(tmp_path / "error.tport")(x.numpy()), wanted, rtol=1e-5)
        half.reason = "no device"
        with pytest.raises(BackendNotAvailableError, match="no device"):
            torchport_runtime.load(tmp_path / "error.tport")
        with pytest.raises(BackendNotAvailableError, match="its graph was not saved"):
            torchport_runtime.load(tmp_path / "error.tport", fallback="interpreter")
        with pytest.warns(UserWarning, match=r"forward\.p0 runs in numpy: .*no device"):
            program = torchport_runtime.load(tmp_path / "falls.tport")
        np.testing.assert_allclose(program(x.numpy()), wanted, rtol=1e-5)
        assert "numpy (1 calls)" in program.explain()
        half.reason, half.broken = "", True
        program = torchport_runtime.load(tmp_path / "falls.tport")
        with pytest.warns(UserWarning, match="out of luck"):
            np.testing.assert_allclose(program(x.numpy()), wanted, rtol=1e-5)
        assert issubclass(Half, RuntimeBackend)
    finally:
        unregister_backend("half")
