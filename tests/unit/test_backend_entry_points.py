"""Backends of installed distributions: found by entry point, imported when asked for, broken ones shown as broken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent

import pytest

import torchport.backend.registry as registry_module
from support.eager_backend import EagerTestBackend
from torchport.backend import BackendRegistry, NullBackend
from torchport.backend.registration import installed_entry_points
from torchport.errors import BackendNotAvailableError, BackendRegistrationError, UnknownBackendError

BACKEND = """
    from torchport.backend import NullBackend

    class AcmeBackend(NullBackend):
        pass
"""

Install = Callable[..., None]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendRegistry]:
    """An empty registry that sees every installed distribution but torchport's own."""

    def strangers() -> dict[str, tuple[EntryPoint, ...]]:
        found = {
            name: tuple(p for p in points if p.dist is None or p.dist.name != "torchport")
            for name, points in installed_entry_points().items()
        }
        return {name: points for name, points in found.items() if points}

    fresh = BackendRegistry()
    monkeypatch.setattr(registry_module, "_registry", fresh)
    monkeypatch.setattr(registry_module, "installed_entry_points", strangers)
    yield fresh
    fresh.close()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts distributions on the path, as pip would: metadata with an entry point, and a module."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def install(distribution: str, value: str, source: str = BACKEND, name: str = "acme") -> None:
        metadata = tmp_path / f"{distribution.replace('-', '_')}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[torchport.backends]\n{name} = {value}\n")
        (tmp_path / f"{value.partition(':')[0]}.py").write_text(dedent(source))

    yield install
    for module in set(sys.modules) - before:
        if module.startswith("acme"):
            del sys.modules[module]


def test_an_installed_backend_is_listed_without_importing_it(registry: BackendRegistry, install: Install) -> None:
    install("acme-port", "acme_port:AcmeBackend")
    assert "acme" in registry.names()
    assert "acme_port" not in sys.modules


def test_an_installed_backend_is_imported_when_it_is_asked_for(registry: BackendRegistry, install: Install) -> None:
    install("acme-port", "acme_port:AcmeBackend")
    assert type(registry.activate("acme")).__name__ == "AcmeBackend"
    availability = registry.backends()["acme"]
    assert (True, "1.2", NullBackend.capabilities) == (
        availability.available,
        availability.version,
        availability.capabilities,
    )


def test_a_backend_installed_while_the_process_runs_is_found(registry: BackendRegistry, install: Install) -> None:
    with pytest.raises(UnknownBackendError):
        registry.registration("acme")
    install("acme-port", "acme_port:AcmeBackend")
    assert registry.registration("acme").name == "acme"


def test_a_backend_that_cannot_be_imported_is_listed_with_the_reason(
    registry: BackendRegistry, install: Install
) -> None:
    install("acme-port", "acme_port:AcmeBackend", "import acme_runtime_that_is_not_there")
    availability = registry.backends()["acme"]
    assert (False, "1.2") == (availability.available, availability.version)
    assert availability.reason == (
        "importing acme_port:AcmeBackend (entry point of acme-port 1.2) raised ModuleNotFoundError: "
        "No module named 'acme_runtime_that_is_not_there'"
    )
    with pytest.raises(BackendNotAvailableError, match="'acme': importing acme_port:AcmeBackend") as error:
        registry.activate("acme")
    assert isinstance(error.value.__cause__, ModuleNotFoundError)


def test_an_entry_point_to_nothing_is_listed_with_the_reason(registry: BackendRegistry, install: Install) -> None:
    install("acme-port", "acme_port:Missing")
    assert "AttributeError: module 'acme_port' has no attribute 'Missing'" in registry.backends()["acme"].reason


def test_a_class_that_does_not_keep_the_contract_is_listed_with_what_is_wrong(
    registry: BackendRegistry, install: Install
) -> None:
    install("acme-port", "acme_port:AcmeBackend", "class AcmeBackend: pass")
    assert "missing: compile(self, instances: list[Computation])" in registry.backends()["acme"].reason
    with pytest.raises(BackendRegistrationError, match="does not derive from"):
        registry.activate("acme")


def test_a_broken_backend_is_no_obstacle_to_others(registry: BackendRegistry, install: Install) -> None:
    install("acme-port", "acme_port:AcmeBackend")
    install("acme-broken", "acme_broken:AcmeBackend", "1 / 0", name="broken")
    shown = registry.backends()
    assert (True, False) == (shown["acme"].available, shown["broken"].available)
    assert registry.activate("acme").get_backend_devices()


def test_a_name_claimed_by_two_distributions_names_both(registry: BackendRegistry, install: Install) -> None:
    install("acme-port", "acme_port:AcmeBackend")
    install("acme-fork", "acme_fork:AcmeBackend")
    install("acme-other", "acme_other:AcmeBackend", name="other")
    with pytest.raises(BackendRegistrationError) as error:
        registry.activate("acme")
    for text in (
        "backend 'acme'",
        "acme_port:AcmeBackend (entry point of acme-port 1.2)",
        "acme_fork:AcmeBackend (entry point of acme-fork 1.2)",
        "Uninstall all of these distributions but one",
    ):
        assert text in str(error.value)
    shown = registry.backends()
    assert (False, str(error.value)) == (shown["acme"].available, shown["acme"].reason)
    assert shown["other"].available


def test_registering_the_name_of_an_installed_backend_names_both(registry: BackendRegistry, install: Install) -> None:
    install("acme-port", "acme_port:AcmeBackend")
    with pytest.raises(BackendRegistrationError) as error:
        registry.register("acme", EagerTestBackend)
    assert "taken by acme_port:AcmeBackend (entry point of acme-port 1.2)" in str(error.value)
    assert "support.eager_backend.EagerTestBackend cannot have it too" in str(error.value)
    assert "acme_port" not in sys.modules


def test_a_module_may_register_what_its_own_entry_point_names(registry: BackendRegistry, install: Install) -> None:
    source = (
        dedent(BACKEND) + "\nfrom torchport.backend import register_backend\nregister_backend('acme', AcmeBackend)\n"
    )
    install("acme-port", "acme_port:AcmeBackend", source)
    loaded = registry.registration("acme")
    assert loaded.target is sys.modules["acme_port"].AcmeBackend
    assert registry.register("acme", loaded.target) is loaded


def test_an_entry_point_may_be_a_factory(registry: BackendRegistry, install: Install) -> None:
    source = """
        from torchport.backend import NullBackend

        def make() -> NullBackend:
            return NullBackend(device_count=8)
    """
    install("acme-port", "acme_port:make", source)
    assert len(registry.activate("acme").get_backend_devices()) == 8
