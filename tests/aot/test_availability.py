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
from torchport.backend import (
    BackendRegistrar,
    DelegatedModule,
    NullBackend,
    PyTorchBackendInterface,
    RecordingBackend,
    backends,
    default_registry,
    register_backend,
)
from torchport.backend.delegates import unregister_delegate
from torchport.backend.registration import installed_entry_points
from torchport.backends.interpreter import InterpreterBackend
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
    with BackendRegistrar("mine", Switched(), owner="the first owner"):
        for source in (Switched(), NullBackend):
            with pytest.raises(BackendRegistrationError, match="taken by the first owner; the second owner cannot"):
                register_backend("mine", source, owner="the second owner")
    with pytest.raises(BackendRegistrationError, match="the name is taken by"):
        register_backend("interpreter", Switched())
    with pytest.raises(BackendRegistrationError, match="a backend's name is letters"):
        register_backend("with space", Switched())
    assert "mine" not in backends()


def test_missing_methods_are_all_listed() -> None:
    class Half(PyTorchBackendInterface):
        pass

    with pytest.raises(BackendRegistrationError, match=r"it lacks compile\(\), execute\(\)"):
        register_backend("half", Half)


def test_a_factory_and_a_preprocess_function_make_a_delegate(module: Blocks) -> None:
    made: list[Switched] = []

    def factory() -> Switched:
        made.append(Switched())
        return made[-1]

    def preprocess(delegated: DelegatedModule, method_compile_spec: object) -> dict[str, bytes]:
        return {name: str(graph).encode() + b"\n" for name, graph in delegated.graphs.items()}

    with BackendRegistrar("mine", factory, preprocess):
        lowered = to_backend("mine", module, spec_of(X))
        torch.testing.assert_close(lowered(X), module(X).detach())
        assert len(made) == 1
        assert all(p.payload.endswith(b"\n") for p in lowered._methods["forward"].parts.values())


def test_delegates_are_listed_with_their_reasons_and_are_not_for_the_lazy_device() -> None:
    backend = Switched()
    backend.can_execute = False
    with BackendRegistrar("mine", backend):
        answer = backends()["mine"]
        assert not answer.available
        assert answer.reason == "it cannot execute here"
        with pytest.raises(BackendNotAvailableError, match="it does not run the lazy device"):
            torchport.use("mine")


class Point:
    """An entry point of an installed distribution."""

    def __init__(self, target: object) -> None:
        self.target = target
        self.value = "vendor:Delegate"
        self.dist = None

    def load(self) -> object:
        return self.target


def test_an_installed_distribution_may_bring_a_delegate_only(module: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    points = installed_entry_points() | {"vendor": (Point(Switched),)}
    monkeypatch.setattr("torchport.backend.registry.installed_entry_points", lambda: points)
    monkeypatch.setattr(default_registry(), "_entry_points", None)
    try:
        assert backends()["vendor"].available
        assert backends()["interpreter"].available
        lowered = to_backend("vendor", module, spec_of(X))
        torch.testing.assert_close(lowered(X), module(X).detach())
        with pytest.raises(BackendNotAvailableError, match="it does not run the lazy device"):
            torchport.use("vendor")
    finally:
        unregister_delegate("vendor")
        monkeypatch.setattr(default_registry(), "_entry_points", None)


def test_a_recording_backend_records_its_delegate_too(module: Blocks) -> None:
    recording = RecordingBackend(InterpreterBackend())
    with BackendRegistrar("recorded", recording):
        lowered = to_backend("recorded", module, spec_of(X))
        lowered(X)
    seen = [m for m in recording.methods if m not in ("supports", "delegate", "is_available")]
    assert seen == ["kept_whole", "preprocess", "compile", "execute"]
    assert any(c.method == "execute" and "f32" in c.arguments for c in recording.calls)


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
