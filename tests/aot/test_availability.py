"""The availability table of the delegate contract, cell by cell, and what fallback makes of it (cases 26 and 30)."""

from __future__ import annotations

import warnings

import pytest
import torch

import torchport
from aot.subjects import Blocks, Switched, registered, spec_of
from torchport import metrics
from torchport.aot.lowered_module import LoweredModule
from torchport.aot.to_backend import to_backend
from torchport.backend import BackendRegistrar, PyTorchBackendInterface
from torchport.backend.delegates import register_delegate, unregister_delegate
from torchport.errors import BackendNotAvailableError, BackendRegistrationError

X = torch.randn(3, 6)


@pytest.fixture
def module() -> Blocks:
    return Blocks().eval()


@pytest.mark.parametrize(
    ("can_compile", "can_execute", "missing"),
    [(False, False, "compile and execute"), (False, True, "compile"), (True, False, "execute")],
)
def test_a_missing_backend_warns_at_creation_and_raises_when_called(
    module: Blocks, can_compile: bool, can_execute: bool, missing: str
) -> None:
    backend = Switched()
    backend.can_compile, backend.can_execute = can_compile, can_execute
    with registered("switched", backend):
        with pytest.warns(UserWarning, match=f"Backend not available here: 'switched': it cannot {missing} here"):
            lowered = to_backend("switched", module, spec_of(X))
        assert backend.calls == ["preprocess"]
        for _ in range(2):
            with pytest.raises(BackendNotAvailableError, match=rf"'switched': forward\.p0 cannot run: .*{missing}"):
                lowered(X)
        assert backend.calls == ["preprocess"]


def test_an_available_backend_compiles_at_creation(module: Blocks) -> None:
    backend = Switched()
    with registered("switched", backend), warnings.catch_warnings():
        warnings.simplefilter("error")
        lowered = to_backend("switched", module, spec_of(X))
        assert backend.calls == ["preprocess", "compile"]
        torch.testing.assert_close(lowered(X), module(X).detach())
        assert backend.calls == ["preprocess", "compile", "execute"]


def test_a_backend_from_before_is_available_existed_counts_as_available(module: Blocks) -> None:
    class Old(Switched):
        is_available = None  # type: ignore[assignment]

    with registered("old", Old()):
        torch.testing.assert_close(to_backend("old", module, spec_of(X))(X), module(X).detach())


def test_a_probe_that_raises_is_the_reason(module: Blocks) -> None:
    class Raises(Switched):
        def is_available(self):
            raise OSError("no driver")

    with registered("raises", Raises()), pytest.warns(UserWarning, match="raised OSError: no driver"):
        to_backend("raises", module, spec_of(X))


def test_a_plain_no_is_a_reason_too(module: Blocks) -> None:
    class No(Switched):
        def is_available(self):
            return False

    with registered("no", No()), pytest.warns(UserWarning, match="its is_available\\(\\) says no, without a reason"):
        to_backend("no", module, spec_of(X))


def fallbacks() -> int:
    return metrics.counter_value("DelegateFallback")


def test_a_missing_backend_falls_back_is_counted_and_seen(module: Blocks) -> None:
    backend = Switched()
    backend.can_compile = False
    before = fallbacks()
    with registered("switched", backend):
        with pytest.warns(UserWarning, match=r"switched forward\.p0 runs in the interpreter: it cannot compile here"):
            lowered = to_backend("switched", module, spec_of(X), fallback="interpreter")
        for _ in range(2):
            torch.testing.assert_close(lowered(X), module(X).detach())
    assert fallbacks() == before + 2
    assert "it cannot compile here (2 calls in the interpreter)" in lowered.explain()


def test_a_failure_at_run_time_falls_back(module: Blocks) -> None:
    backend = Switched()
    with registered("switched", backend):
        lowered = to_backend("switched", module, spec_of(X), fallback="interpreter")
        torch.testing.assert_close(lowered(X), module(X).detach())
        backend.broken.add("execute")
        with pytest.warns(UserWarning, match="RuntimeError: out of luck"):
            torch.testing.assert_close(lowered(X), module(X).detach())
        torch.testing.assert_close(lowered(X), module(X).detach())
        backend.broken.clear()
        before = fallbacks()
        torch.testing.assert_close(lowered(X), module(X).detach())
        assert fallbacks() == before


def test_a_failure_at_run_time_is_an_error_without_fallback(module: Blocks) -> None:
    backend = Switched()
    with registered("switched", backend):
        lowered = to_backend("switched", module, spec_of(X))
        backend.broken.add("execute")
        with pytest.raises(RuntimeError, match="out of luck"):
            lowered(X)


def test_one_part_that_fails_to_load_falls_back_alone(module: Blocks) -> None:
    backend = Switched()
    backend.refuses = lambda node: "sin" in node.call.name
    backend.broken.add("forward.p1")
    with registered("switched", backend):
        with pytest.warns(UserWarning, match=r"switched forward\.p1 runs in the interpreter") as seen:
            lowered = to_backend("switched", module, spec_of(X), fallback="interpreter")
        assert len(seen) == 1
        torch.testing.assert_close(lowered(X), module(X).detach())
        assert backend.calls.count("execute") == 1
        with pytest.raises(BackendNotAvailableError, match=r"compile\(\) raised RuntimeError: forward.p1 is broken"):
            to_backend("switched", module, spec_of(X))


def test_on_a_target_a_missing_backend_is_an_error_when_it_is_loaded(module: Blocks) -> None:
    backend = Switched()
    with registered("switched", backend):
        lowered = to_backend("switched", module, spec_of(X))
        backend.can_execute = False
        with pytest.raises(BackendNotAvailableError, match="it cannot execute here"):
            LoweredModule("switched", lowered._methods, lowered._weights, "error", require=True)


def test_a_name_is_taken_once_and_both_owners_are_named() -> None:
    register_delegate("mine", Switched(), None, "the first owner")
    try:
        with pytest.raises(BackendRegistrationError, match="taken by the first owner; the second owner cannot"):
            register_delegate("mine", Switched(), None, "the second owner")
        with pytest.raises(BackendRegistrationError, match="the name is taken by"):
            register_delegate("interpreter", Switched(), None, None)
    finally:
        unregister_delegate("mine")


def test_one_function_registers_both_kinds_of_backend_under_names_that_are_taken_once(module: Blocks) -> None:
    asked = []

    def preprocess(graphs, method_compile_spec):
        asked.append(sorted(graphs.graphs))
        return {name: str(graph).encode() for name, graph in graphs.graphs.items()}

    backend = Switched()
    torchport.register_backend("whole", backend)
    torchport.register_backend("made", lambda: backend, preprocess, owner="the factory")
    try:
        for name in ("whole", "made"):
            torch.testing.assert_close(to_backend(name, module, spec_of(X))(X), module(X).detach())
        assert [["forward.p0"]] == asked
        with pytest.raises(BackendRegistrationError, match="taken by the factory; a device cannot have it too"):
            torchport.register_backend("made", torchport.NullBackend, owner="a device")
        with pytest.raises(BackendRegistrationError, match="the name is taken by"):
            torchport.register_backend("interpreter", Switched)
    finally:
        unregister_delegate("whole")
        unregister_delegate("made")


def test_missing_methods_are_all_listed() -> None:
    class Half(PyTorchBackendInterface):
        pass

    with pytest.raises(BackendRegistrationError, match=r"it lacks compile\(\), execute\(\)"):
        register_delegate("half", Half, None, None)


def test_a_backend_of_the_lazy_device_only_says_so(module: Blocks) -> None:
    from support.eager_backend import EagerTestBackend

    with (
        BackendRegistrar("first-door", EagerTestBackend),
        pytest.raises(BackendNotAvailableError, match="it runs the lazy device only"),
    ):
        to_backend("first-door", module, spec_of(X))


def test_a_wrong_answer_of_preprocess_is_named(module: Blocks) -> None:
    class Forgets(Switched):
        def preprocess(self, module, method_compile_spec):
            return {}

    with registered("forgets", Forgets()), pytest.raises(TypeError, match=r"bytes for each graph, \['forward\.p0'\]"):
        to_backend("forgets", module, spec_of(X))
