"""Settings: what is legal, what is refused and in which words, the environment, and the generated page."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchport.config import SETTINGS, Settings, describe, from_environment, override, settings
from torchport.errors import SettingError

ROOT = Path(__file__).parents[2]

ILLEGAL: list[tuple[str, Any]] = [
    ("backend", ""),
    ("backend", "two words"),
    ("backend", None),
    ("device_name", "Port"),
    ("device_name", "port3"),
    ("device_name", "cuda"),
    ("device_name", "privateuseone"),
    ("compile_cache_entries", 0),
    ("compile_cache_entries", 1.5),
    ("max_pending_nodes", True),
    ("launch_queue_size", 0),
    ("launch_queue_size", 65),
    ("async_execution", 1),
    ("strict_fallback", "no"),
]


@pytest.fixture
def fresh() -> Settings:
    return Settings()


def test_the_defaults_are_legal_and_are_those_of_the_table(fresh: Settings) -> None:
    assert {name: s.default for name, s in SETTINGS.items()} == {name: getattr(fresh, name) for name in SETTINGS}


def test_a_legal_value_is_kept(fresh: Settings) -> None:
    fresh.launch_queue_size = 64
    assert 64 == fresh.launch_queue_size


@pytest.mark.parametrize(("name", "value"), ILLEGAL)
def test_an_illegal_value_is_refused_with_the_legal_ones_and_changes_nothing(
    fresh: Settings, name: str, value: object
) -> None:
    with pytest.raises(SettingError) as caught:
        setattr(fresh, name, value)
    assert f"settings.{name} = {value!r}: the legal values of {name!r} are {SETTINGS[name].rule.text}." in str(
        caught.value
    )
    assert SETTINGS[name].default == getattr(fresh, name)


def test_the_message_of_a_number_out_of_range_gives_the_range(fresh: Settings) -> None:
    with pytest.raises(SettingError, match=r"launch_queue_size = 65: .* are whole numbers from 1 to 64\."):
        fresh.launch_queue_size = 65


def test_setting_a_misspelt_name_suggests_the_nearest(fresh: Settings) -> None:
    with pytest.raises(SettingError, match=r"there is no setting 'sorce_lines'\. Did you mean 'source_lines'\?"):
        fresh.sorce_lines = False  # type: ignore[attr-defined]


def test_reading_a_misspelt_name_suggests_the_nearest(fresh: Settings) -> None:
    with pytest.raises(AttributeError, match=r"Did you mean 'max_pending_nodes'\?"):
        _ = fresh.max_pending_node


def test_reading_is_a_plain_slot_access() -> None:
    assert not hasattr(settings, "__dict__")
    assert {"member_descriptor"} == {type(vars(Settings)[name]).__name__ for name in SETTINGS}


def test_settings_can_be_copied_compared_and_pickled(fresh: Settings) -> None:
    fresh.backend = "null"
    assert fresh == copy.deepcopy(fresh) == pickle.loads(pickle.dumps(fresh)) != Settings()


class TestOverride:
    def test_holds_inside_the_block_and_nests(self) -> None:
        with override(strict_fallback=True, launch_queue_size=3) as inner:
            assert (True, 3) == (inner.strict_fallback, settings.launch_queue_size)
            with override(launch_queue_size=4):
                assert 4 == settings.launch_queue_size
            assert 3 == settings.launch_queue_size
        assert (False, 2) == (settings.strict_fallback, settings.launch_queue_size)

    def test_puts_the_values_back_when_the_block_raises(self) -> None:
        with pytest.raises(KeyError), override(source_lines=False):
            raise KeyError
        assert settings.source_lines

    def test_names_every_mistake_at_once_and_changes_nothing(self) -> None:
        with (
            pytest.raises(SettingError) as caught,
            override(source_lines=False, launch_queue_size=0, async_exec=True, backend=""),
        ):
            pytest.fail("the block must not be entered")
        first, second, third = str(caught.value).splitlines()
        assert first.startswith("override(launch_queue_size=0): ")
        assert "'async_exec'" in second
        assert third.startswith("override(backend='')")
        assert settings.source_lines


class TestEnvironment:
    @pytest.mark.parametrize(
        ("text", "value"),
        [("1", True), ("TRUE", True), ("yes", True), ("On", True), ("0", False), ("false", False), (" off ", False)],
    )
    def test_a_switch_is_read_from_the_usual_words(self, text: str, value: bool) -> None:
        assert value is from_environment({"TORCHPORT_ASYNC_EXECUTION": text}).async_execution

    def test_numbers_and_names_are_read(self) -> None:
        read = from_environment({"TORCHPORT_MAX_PENDING_NODES": "5_000", "TORCHPORT_BACKEND": "xla", "PATH": "/bin"})
        assert (5000, "xla", "port") == (read.max_pending_nodes, read.backend, read.device_name)

    def test_an_empty_variable_counts_as_not_set(self) -> None:
        assert Settings() == from_environment({"TORCHPORT_BACKEND": "", "TORCHPORT_ASYNC_EXECUTION": " "})

    @pytest.mark.parametrize(
        ("variable", "text"),
        [
            ("TORCHPORT_ASYNC_EXECUTION", "maybe"),
            ("TORCHPORT_LAUNCH_QUEUE_SIZE", "65"),
            ("TORCHPORT_LAUNCH_QUEUE_SIZE", "two"),
            ("TORCHPORT_MAX_PENDING_NODES", "1e3"),
            ("TORCHPORT_DEVICE_NAME", "cpu"),
        ],
    )
    def test_an_illegal_value_is_an_error_that_names_the_variable(self, variable: str, text: str) -> None:
        with pytest.raises(SettingError, match=re.escape(f"environment variable {variable}={text!r}: ")):
            from_environment({variable: text})

    def test_every_illegal_variable_is_named_at_once(self) -> None:
        with pytest.raises(SettingError) as caught:
            from_environment({"TORCHPORT_ASYNC_EXECUTION": "maybe", "TORCHPORT_COMPILE_CACHE_ENTRIES": "-1"})
        assert 2 == len(str(caught.value).splitlines())

    def test_a_variable_that_looks_misspelt_is_warned_of(self) -> None:
        with pytest.warns(UserWarning, match=r"TORCHPORT_BACKND .* did you mean TORCHPORT_BACKEND\?"):
            from_environment({"TORCHPORT_BACKND": "xla"})

    def test_a_variable_of_somebody_elses_backend_is_left_alone(self) -> None:
        assert Settings() == from_environment({"TORCHPORT_ACME_TILE_SIZE": "8"})

    @given(st.text())
    def test_any_text_is_a_legal_value_or_a_setting_error(self, text: str) -> None:
        for setting in SETTINGS.values():
            try:
                value = setting.parse(text)
            except SettingError:
                continue
            assert setting.type is type(value)

    @pytest.mark.subprocess
    def test_importing_with_an_illegal_variable_fails_and_names_it(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", "import torchport.config"],
            env={"TORCHPORT_LAUNCH_QUEUE_SIZE": "many", "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
        )
        assert 1 == done.returncode
        assert "SettingError: environment variable TORCHPORT_LAUNCH_QUEUE_SIZE='many'" in done.stderr


@pytest.mark.subprocess
@pytest.mark.parametrize(("name", "is_legal"), [("my_npu", True), ("Npu", False), ("npu2", False), ("xpu", False)])
def test_torch_takes_a_device_name_exactly_where_the_setting_does(fresh: Settings, name: str, is_legal: bool) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import torch; torch.utils.rename_privateuse1_backend({name!r}); torch.device({name!r})",
        ],
        capture_output=True,
    )
    assert is_legal == (done.returncode == 0)
    assert is_legal == SETTINGS["device_name"].rule.accepts(name)


def test_every_device_of_torch_is_refused_as_a_device_name() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.device("nothing")
    names = re.search(r"Expected one of (.*) device type", str(caught.value))
    assert names is not None
    assert [] == [name for name in names[1].split(", ") if SETTINGS["device_name"].rule.accepts(name)]


def test_the_settings_page_is_current() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert describe() == page, "docs/settings.md is not what describe() gives: run `make docs`"


def test_the_page_tells_everything_of_every_setting() -> None:
    page = describe()
    for s in SETTINGS.values():
        told = (f"## {s.name}\n", s.meaning, s.rule.text, f"`{s.default!r}`", s.environment_variable, s.type.__name__)
        assert [] == [text for text in told if text not in page]
