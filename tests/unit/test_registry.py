"""The registry: which backends there are, which one is active, what happens when that changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from textwrap import dedent

import pytest

import torchport.backend.registry as registry_module
from support.eager_backend import EagerTestBackend
from torchport.backend import (
    Availability,
    BackendImplInterface,
    BackendRegistrar,
    BackendRegistry,
    Capabilities,
    IrBuilder,
    NullBackend,
    activate,
    backends,
    get_backend,
    get_ir_builder,
    has_backend,
    register_backend,
)
from torchport.errors import (
    BackendNotAvailableError,
    BackendRegistrationError,
    NoActiveBackendError,
    UnknownBackendError,
)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendRegistry]:
    """The process's registry, replaced by an empty one."""
    fresh = BackendRegistry()
    monkeypatch.setattr(registry_module, "_registry", fresh)
    monkeypatch.setattr(registry_module, "installed_entry_points", dict)
    yield fresh
    fresh.close()


def noted(log: list[str], name: str) -> BackendImplInterface:
    """A backend that writes its life into a log."""

    class Noted(EagerTestBackend):
        def initialize_aten_bindings(self) -> None:
            log.append(f"{name} initialized")

        def prepare_to_exit(self) -> None:
            log.append(f"{name} exited")

    return Noted()


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_backend_may_be_registered_as_a_class_an_instance_or_a_factory(registry: BackendRegistry) -> None:
    instance = EagerTestBackend()
    register_backend("class", EagerTestBackend)
    register_backend("instance", instance)
    register_backend("factory", lambda: EagerTestBackend(device_count=4))
    assert ["class", "factory", "instance"] == registry.names()
    assert isinstance(activate("class"), EagerTestBackend)
    assert activate("instance") is instance
    assert len(activate("factory").get_backend_devices()) == 4


def test_registering_makes_no_instance_and_activates_nothing(registry: BackendRegistry) -> None:
    made: list[BackendImplInterface] = []

    def factory() -> BackendImplInterface:
        made.append(EagerTestBackend())
        return made[-1]

    register_backend("toy", factory)
    assert backends()["toy"].available
    assert ([], False) == (made, has_backend())


def test_there_is_one_instance_per_registration(registry: BackendRegistry) -> None:
    register_backend("toy", EagerTestBackend)
    register_backend("other", NullBackend)
    first = activate("toy")
    activate("other")
    assert activate("toy") is first


def test_a_name_is_taken_once_and_the_error_names_both_owners(registry: BackendRegistry) -> None:
    register_backend("toy", EagerTestBackend)
    with pytest.raises(BackendRegistrationError) as error:
        register_backend("toy", NullBackend)
    assert str(error.value) == (
        "register_backend('toy', …): the name is taken by support.eager_backend.EagerTestBackend; "
        "torchport.backend.null.NullBackend cannot have it too. Choose another name, or unregister the first one "
        "(torchport.BackendRegistrar.unregister), or uninstall its distribution."
    )
    assert isinstance(activate("toy"), EagerTestBackend)


def test_an_owner_given_by_name_is_the_one_in_the_error(registry: BackendRegistry) -> None:
    register_backend("toy", EagerTestBackend, owner="Acme Computers")
    with pytest.raises(BackendRegistrationError, match=r"taken by Acme Computers; Umbrella cannot"):
        register_backend("toy", EagerTestBackend, owner="Umbrella")


@pytest.mark.parametrize("name", ["", " toy", "-toy", "a/b", "toy\n", EagerTestBackend])
def test_a_name_that_cannot_be_typed_is_refused(registry: BackendRegistry, name: str) -> None:
    with pytest.raises(BackendRegistrationError, match=r"letters, digits, '_', '-' and '\.'"):
        register_backend(name, EagerTestBackend)


def test_an_unknown_name_lists_what_there_is_and_suggests_the_nearest(registry: BackendRegistry) -> None:
    register_backend("openvino", EagerTestBackend)
    register_backend("toy", EagerTestBackend)
    with pytest.raises(UnknownBackendError) as error:
        activate("openvina")
    assert str(error.value) == (
        "there is no backend 'openvina'. Did you mean 'openvino'? Registered here: openvino, toy. "
        "Install the package that provides it, or register it with torchport.register_backend()."
    )
    with pytest.raises(UnknownBackendError, match=r"no backend 'zzz'\. Registered here"):
        registry.availability("zzz")


# -- the active backend -----------------------------------------------------------------------------------------------


def test_no_backend_is_active_until_one_is_activated(registry: BackendRegistry) -> None:
    register_backend("toy", EagerTestBackend)
    assert not has_backend()
    with pytest.raises(NoActiveBackendError) as error:
        get_backend()
    assert str(error.value) == (
        "no backend is active. Choose one with torchport.use(name) or the environment variable TORCHPORT_BACKEND. "
        "Registered here: toy."
    )
    with pytest.raises(NoActiveBackendError):
        get_ir_builder()
    assert not has_backend()


def test_the_activated_backend_is_the_one_that_is_got(registry: BackendRegistry) -> None:
    register_backend("toy", EagerTestBackend)
    assert activate("toy") is get_backend()
    assert has_backend()
    assert registry.active_name == "toy"


def test_the_ir_builder_is_the_active_backends(registry: BackendRegistry) -> None:
    class Builder(IrBuilder):
        pass

    builder = Builder()

    class Mine(EagerTestBackend):
        def get_ir_builder(self) -> IrBuilder:
            return builder

    register_backend("mine", Mine)
    activate("mine")
    assert get_ir_builder() is builder


def test_a_backend_is_initialized_at_its_first_activation_and_exits_at_each_switch(registry: BackendRegistry) -> None:
    log: list[str] = []
    register_backend("a", noted(log, "a"))
    register_backend("b", noted(log, "b"))
    for name in "aabab":
        activate(name)
    assert [
        "a initialized",
        "b initialized",
        "a exited",
        "b exited",
        "a exited",
    ] == log


def test_switching_syncs_first_and_migrates_while_both_backends_work(registry: BackendRegistry) -> None:
    log: list[str] = []
    a, b = noted(log, "a"), noted(log, "b")
    register_backend("a", a)
    register_backend("b", b)

    def migrate(old: BackendImplInterface, new: BackendImplInterface) -> None:
        assert (a, b, a) == (old, new, get_backend())
        log.append("migrated")

    def sync() -> None:
        assert get_backend() is a
        log.append("synced")

    activate("a", sync, migrate)
    assert log == ["a initialized"]
    activate("b", sync, migrate)
    assert log == ["a initialized", "synced", "b initialized", "migrated", "a exited"]


def test_activating_the_active_backend_again_does_nothing(registry: BackendRegistry) -> None:
    log: list[str] = []
    register_backend("a", noted(log, "a"))
    activate("a")
    activate("a", lambda: log.append("synced"), lambda old, new: log.append("migrated"))
    assert log == ["a initialized"]


@pytest.mark.parametrize("failing", ["before_switch", "initialize_aten_bindings", "migrate"])
def test_the_old_backend_stays_active_when_a_switch_fails(registry: BackendRegistry, failing: str) -> None:
    def fail(*args: object) -> None:
        raise OSError("the device is busy")

    class Broken(EagerTestBackend):
        def initialize_aten_bindings(self) -> None:
            if failing == "initialize_aten_bindings":
                fail()

    old = EagerTestBackend()
    register_backend("old", old)
    register_backend("new", Broken)
    activate("old")
    callbacks = {failing: fail} if failing != "initialize_aten_bindings" else {}
    with pytest.raises(OSError, match="the device is busy"):
        activate("new", **callbacks)
    assert get_backend() is old
    assert old.exits == 0


def test_a_backend_that_fails_to_clean_up_does_not_undo_the_switch(registry: BackendRegistry) -> None:
    class Untidy(EagerTestBackend):
        def prepare_to_exit(self) -> None:
            raise OSError("the device hangs")

    register_backend("untidy", Untidy)
    register_backend("toy", EagerTestBackend)
    activate("untidy")
    with pytest.warns(RuntimeWarning, match=r"'untidy': prepare_to_exit\(\) raised OSError: the device hangs"):
        activate("toy")
    assert registry.active_name == "toy"


def test_another_thread_sees_the_old_backend_while_a_switch_is_going_on(registry: BackendRegistry) -> None:
    register_backend("a", EagerTestBackend)
    register_backend("b", NullBackend)
    a = activate("a")
    seen: list[BackendImplInterface] = []

    def sync() -> None:
        # What the runtime does: it waits for a thread that itself asks for the backend.
        thread = threading.Thread(target=lambda: seen.append(get_backend()))
        thread.start()
        thread.join(timeout=60)

    activate("b", sync)
    assert [a] == seen


def test_a_listener_is_told_after_every_change_of_the_active_backend(registry: BackendRegistry) -> None:
    seen: list[str | None] = []
    registry.add_listener(lambda: seen.append(registry.active_name))
    register_backend("a", EagerTestBackend)
    register_backend("b", NullBackend)
    for name in "aab":
        activate(name)
    registry.unregister("b")
    registry.deactivate()
    assert ["a", "b", None] == seen


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_at_exit_the_active_backend_is_prepared_once(registry: BackendRegistry) -> None:
    log: list[str] = []
    register_backend("a", noted(log, "a"))
    register_backend("b", noted(log, "b"))
    activate("a")
    registry.close()
    registry.close()
    assert log == ["a initialized", "a exited"]


def test_a_forked_child_leaves_its_parents_backend_alone(
    registry: BackendRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    register_backend("a", noted(log, "a"))
    activate("a")
    monkeypatch.setattr(registry_module.os, "getpid", lambda: -1)
    registry.close()
    assert log == ["a initialized"]


@pytest.mark.subprocess
def test_a_process_that_ends_prepares_its_backend_after_the_runtimes_own_handlers() -> None:
    script = """
        import atexit
        from torchport.backend import NullBackend, activate, register_backend

        class Loud(NullBackend):
            def prepare_to_exit(self):
                print("backend exits")

        register_backend("loud", Loud)
        activate("loud")
        atexit.register(print, "runtime has waited")
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", dedent(script)], env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    assert ["runtime has waited", "backend exits"] == run.stdout.splitlines()


# -- BackendRegistrar -------------------------------------------------------------------------------------------------


def test_a_registrar_registers_until_it_is_unregistered(registry: BackendRegistry) -> None:
    registrar = BackendRegistrar("toy", EagerTestBackend)
    assert ["toy"] == registry.names()
    registrar.unregister()
    registrar.unregister()
    assert [] == registry.names()


def test_a_registrars_block_ends_the_registration_also_by_an_exception(registry: BackendRegistry) -> None:
    with pytest.raises(KeyError), BackendRegistrar("toy", EagerTestBackend):
        raise KeyError("stop")
    assert [] == registry.names()


def test_unregistering_the_active_backend_syncs_and_deactivates_it(registry: BackendRegistry) -> None:
    log: list[str] = []
    with BackendRegistrar("a", noted(log, "a")):
        activate("a", lambda: log.append("synced"))
    assert log == ["a initialized", "synced", "a exited"]
    assert not has_backend()


def test_asking_for_the_active_backend_again_keeps_how_its_work_is_finished(registry: BackendRegistry) -> None:
    log: list[str] = []
    register_backend("a", EagerTestBackend)
    activate("a", lambda: log.append("synced"))
    activate("a")
    registry.deactivate()
    registry.deactivate()
    assert log == ["synced"]


def test_a_registrar_does_not_unregister_the_next_owner_of_its_name(registry: BackendRegistry) -> None:
    first = BackendRegistrar("toy", EagerTestBackend)
    first.unregister()
    BackendRegistrar("toy", NullBackend)
    first.unregister()
    assert ["toy"] == registry.names()


def test_a_registrar_says_what_it_registered(registry: BackendRegistry) -> None:
    registrar = BackendRegistrar("toy", EagerTestBackend)
    assert repr(registrar) == "BackendRegistrar('toy', support.eager_backend.EagerTestBackend)"
    registrar.unregister()
    assert repr(registrar) == "BackendRegistrar('toy', unregistered)"


def test_unregistering_what_was_never_registered_is_an_error(registry: BackendRegistry) -> None:
    with pytest.raises(UnknownBackendError, match="no backend 'toy'"):
        registry.unregister("toy")


# -- availability -----------------------------------------------------------------------------------------------------


def test_a_backend_without_a_probe_is_available_with_its_capabilities(registry: BackendRegistry) -> None:
    register_backend("toy", EagerTestBackend)
    assert backends() == {"toy": Availability(True, capabilities=EagerTestBackend.capabilities)}


def test_a_backend_says_by_itself_that_it_is_unavailable_and_why(registry: BackendRegistry) -> None:
    class Absent(EagerTestBackend):
        @classmethod
        def availability(cls) -> Availability:
            return Availability(False, "no driver: run `modprobe toy`", "2.1", Capabilities(training=True))

    register_backend("absent", Absent)
    assert backends()["absent"] == Availability(
        False, "no driver: run `modprobe toy`", "2.1", Capabilities(training=True)
    )
    with pytest.raises(BackendNotAvailableError) as error:
        activate("absent")
    assert str(error.value) == "Backend not available: 'absent': no driver: run `modprobe toy`"
    assert not has_backend()


@pytest.mark.parametrize("kind", ["method", "classmethod", "staticmethod"])
def test_a_backend_may_have_is_available_in_any_form(registry: BackendRegistry, kind: str) -> None:
    forms = {
        "method": lambda self: False,
        "classmethod": classmethod(lambda cls: False),
        "staticmethod": staticmethod(lambda: False),
    }
    register_backend("absent", type("Absent", (EagerTestBackend,), {"is_available": forms[kind]}))
    assert not backends()["absent"].available
    assert "is_available() says no" in backends()["absent"].reason


def test_an_is_available_that_says_yes_is_believed(registry: BackendRegistry) -> None:
    register_backend("there", type("There", (EagerTestBackend,), {"is_available": lambda self: True}))
    assert backends()["there"].available


def test_a_probe_that_raises_makes_the_backend_unavailable_with_the_reason(registry: BackendRegistry) -> None:
    class Broken(EagerTestBackend):
        @classmethod
        def availability(cls) -> Availability:
            raise OSError("libtoy.so: cannot open shared object file")

    register_backend("broken", Broken, owner="acme")
    assert backends()["broken"].reason == (
        "asking acme whether it is available raised OSError: libtoy.so: cannot open shared object file"
    )


def test_a_probe_that_answers_with_something_else_is_told_so(registry: BackendRegistry) -> None:
    register_backend("odd", type("Odd", (EagerTestBackend,), {"availability": classmethod(lambda cls: True)}))
    assert backends()["odd"].reason == "its availability() returned True, which is no Availability"


def test_a_constructor_that_raises_is_the_reason_and_the_cause(registry: BackendRegistry) -> None:
    def factory() -> BackendImplInterface:
        raise OSError("no such device")

    register_backend("broken", factory)
    with pytest.raises(
        BackendNotAvailableError, match=r"making it \(.*factory\) raised OSError: no such device"
    ) as error:
        activate("broken")
    assert isinstance(error.value.__cause__, OSError)


def test_the_version_is_that_of_the_module(registry: BackendRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["support"], "__version__", "3.4", raising=False)
    register_backend("toy", EagerTestBackend)
    assert backends()["toy"].version == "3.4"


def test_a_factory_must_return_a_backend(registry: BackendRegistry) -> None:
    register_backend("toy", lambda: "no backend")
    with pytest.raises(BackendRegistrationError, match=r"factory .*<lambda> returned an instance of builtins\.str"):
        activate("toy")


def test_what_a_factory_returns_is_verified(registry: BackendRegistry) -> None:
    class Misnamed(NullBackend):
        def create_metrics_report(self) -> str:
            return ""

    register_backend("toy", lambda: Misnamed())
    with pytest.raises(BackendRegistrationError, match=r"create_metrics_report\(\) is probably meant to be"):
        activate("toy")
