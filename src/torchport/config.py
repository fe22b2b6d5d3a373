"""Every setting: type, default, legal values, meaning, environment variable.

The class :class:`Settings` is the table; ``settings`` is the one object of it that all of torchport reads::

    from torchport.config import override, settings

    settings.max_pending_nodes = 5_000       # checked: an illegal value raises SettingError
    with override(strict_fallback=True):     # several at once, back to what they were afterwards
        ...

Reading one is a plain slot access, cheap enough for traced paths. The environment is read once, on import, and what is
wrong in it is raised there. :func:`describe` gives the table as a page (docs/settings.md).
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from torchport.errors import SettingError

PREFIX = "TORCHPORT_"
"""What the name of every environment variable of ours begins with."""

# The names of PyTorch's own device types, which no other device may take: c10/core/DeviceType.cpp.
# fmt: off
_TORCH_DEVICES = frozenset({
    "cpu", "cuda", "fpga", "hip", "hpu", "ideep", "ipu", "lazy", "maia", "meta", "mkldnn", "mps", "mtia", "opencl",
    "opengl", "privateuseone", "ve", "vulkan", "xla", "xpu",
})
# fmt: on
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Rule:
    """Which values a setting may have.

    Attributes:
        text: the legal values in words, for messages and for the page.
        accepts: whether a value of the setting's type is legal.
    """

    text: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: all there is to know of a setting, without its value."""

    name: str
    type: type
    default: bool | int | str
    rule: Rule
    meaning: str

    @property
    def environment_variable(self) -> str:
        """The variable that gives the setting its value when torchport is imported."""
        return PREFIX + self.name.upper()

    def check(self, value: object, asked: str) -> None:
        """Accepts a legal value.

        Args:
            value: what is to be checked.
            asked: how it was asked for, the first words of the message.

        Raises:
            SettingError: the value is not of the setting's type, or is not legal.
        """
        # bool is a subclass of int, yet True is no number of entries; hence the exact type.
        if type(value) is not self.type or not self.rule.accepts(value):
            raise SettingError(f"{asked}: the legal values of {self.name!r} are {self.rule.text}. {_SEE}")

    def parse(self, text: str) -> bool | int | str:
        """The value that an environment variable's text stands for.

        Raises:
            SettingError: it stands for none, or for one that is not legal; the message names the variable.
        """
        asked = f"environment variable {self.environment_variable}={text!r}"
        value: bool | int | str | None = text.strip()
        if self.type is bool:
            word = str(value).lower()
            value = True if word in _TRUE else False if word in _FALSE else None
            if value is None:
                raise SettingError(f"{asked}: say 1, true, yes or on; or 0, false, no or off. {_SEE}")
        elif self.type is int:
            # int() also takes "١٢" and "1 "; a setting is written in ASCII digits, with "_" as in Python.
            value = int(str(value)) if re.fullmatch(r"-?[0-9]+(_[0-9]+)*", str(value)) else None
        self.check(value, asked)
        assert value is not None  # None is of no setting's type, so check() has refused it
        return value


_SEE = "See docs/settings.md."
_BOOL = Rule("True and False", lambda value: True)
_BACKEND_NAME = Rule(
    "the names of installed backends (letters, digits, '_', '-' and '.'; `torchport backends` lists them), also with "
    "options, as in `inductor{max_autotune=true}`",
    lambda value: re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*(\{[^{}]*\})?", value) is not None,
)
_DEVICE_NAME = Rule(
    "words of lower-case letters and '_' that are not the name of one of PyTorch's own devices",
    lambda value: re.fullmatch(r"[a-z][a-z_]*", value) is not None and value not in _TORCH_DEVICES,
)


def _whole(low: int, high: int | None = None) -> Rule:
    text = f"whole numbers from {low}" + (" upwards" if high is None else f" to {high}")
    return Rule(text, lambda value: value >= low and (high is None or value <= high))


def _setting(default: bool | int | str, rule: Rule, meaning: str) -> Any:
    return field(default=default, metadata={"rule": rule, "meaning": meaning})


@dataclass(slots=True)
class Settings:
    """The settings of this process: a table, one line each; the types are those of the annotations.

    Setting an attribute checks the value. All threads share one object, and the change is seen by the next operation
    that reads it.

    Raises:
        SettingError: an illegal value, or a name that is no setting (on assignment).
        AttributeError: a name that is no setting (on reading).
    """

    backend: str = _setting(
        "interpreter", _BACKEND_NAME, "The backend that is activated at the first use of the device."
    )
    device_name: str = _setting(
        "port",
        _DEVICE_NAME,
        "The name of the lazy device, as in `torch.device(name)`. It is read when the device is registered with torch, "
        "so a vendor's package sets it before that.",
    )
    compile_cache_entries: int = _setting(
        1024, _whole(1), "How many compiled graphs are kept; the least recently used one is dropped first."
    )
    cache_dir: str = _setting(
        "",
        Rule("folders; `off`; and nothing, for `torchport` in the user's cache folder", lambda value: True),
        "The folder of the compile cache on disk, where a second process finds what the first one compiled, for "
        "backends that declare `Capabilities.serialization`. `off`: there is none.",
    )
    cache_dir_mb: int = _setting(
        1024, _whole(1), "How many MiB the compile cache on disk may take; the oldest files are removed first."
    )
    trusted_namespaces: str = _setting(
        "",
        Rule(
            "names of operator libraries, separated by commas, such as `torchvision`",
            lambda value: re.fullmatch(r"([A-Za-z_]\w*(\s*,\s*[A-Za-z_]\w*)*)?", value) is not None,
        ),
        "Whose operators a saved module may call when it is loaded, besides PyTorch's own. An operator of a library is "
        "code of this process, and a file may come from anywhere.",
    )
    capture: bool = _setting(
        True,
        _BOOL,
        "Steps under `torchport.capture` are replayed where that is safe. When off, they are traced at each call.",
    )
    symbolic_sizes: bool = _setting(
        True,
        _BOOL,
        "A graph that differs from an earlier one in sizes only is compiled with symbols for them, once for all sizes, "
        "where the backend declares `Capabilities.symbolic_sizes`. When off, each new size is compiled.",
    )
    max_pending_nodes: int = _setting(
        20_000,
        _whole(1),
        "A graph that grows past this many nodes without a barrier is cut: what is pending is launched.",
    )
    launch_queue_size: int = _setting(
        2,
        _whole(1, 64),
        "How many launched computations may wait for the device. A barrier waits while the queue is full, which bounds "
        "the memory that a program far ahead of its device can take.",
    )
    async_execution: bool = _setting(
        True, _BOOL, "Computations run on a thread of the runtime. When off, a barrier returns after the execution."
    )
    inline_execution_us: int = _setting(
        100,
        _whole(0),
        "A barrier runs a computation itself when its operations took less than this many microseconds each the last "
        "time, nothing is queued, and the backend does not declare `Capabilities.concurrent_execution`: two threads "
        "that take turns at Python's lock are slower than one. 0 hands over every computation.",
    )
    barrier_after_optimizer_step: bool = _setting(
        True,
        _BOOL,
        "`optimizer.step()` ends with a barrier, so that an unmodified training loop is one graph per step.",
    )
    strict_fallback: bool = _setting(
        False, _BOOL, "An operator that would run eagerly raises `StrictModeError` with the user's line instead."
    )
    strict_implicit_sync: bool = _setting(
        False, _BOOL, "Reading a value that is still pending raises `StrictModeError` with the user's line instead."
    )
    source_lines: bool = _setting(
        True, _BOOL, "Each node keeps the user's line, for messages and reports. When off, tracing is a little faster."
    )

    def __setattr__(self, name: str, value: object) -> None:
        setting = SETTINGS.get(name)
        if setting is None:
            raise SettingError(_no_such_setting(name))
        setting.check(value, f"settings.{name} = {value!r}")
        if name in _locked and self is settings and value != getattr(self, name):
            raise SettingError(f"settings.{name} = {value!r}: it is {getattr(self, name)!r} for good: {_locked[name]}")
        # Not super(): a dataclass with slots is a second class, of which the first one's super() knows nothing.
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # Only reached when there is no such slot, so it costs the settings nothing.
        raise AttributeError(_no_such_setting(name))


_locked: dict[str, str] = {}


def lock_setting(name: str, reason: str) -> None:
    """Makes every later change of a setting an error that gives the reason."""
    _locked[name] = reason


_TYPES = get_type_hints(Settings)
SETTINGS: Mapping[str, Setting] = {
    f.name: Setting(f.name, _TYPES[f.name], f.default, f.metadata["rule"], f.metadata["meaning"])
    for f in fields(Settings)
    if isinstance(f.default, bool | int | str)
}
"""The rows of the table, by name, in its order."""


def _no_such_setting(name: str) -> str:
    near = difflib.get_close_matches(name, SETTINGS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no setting {name!r}.{hint} The settings are {', '.join(SETTINGS)}. {_SEE}"


@contextmanager
def override(**values: bool | int | str) -> Iterator[Settings]:
    """The settings with other values inside the block, for all threads; afterwards these have their former values.

    Raises:
        SettingError: a name or a value is wrong: all of them at once, and nothing was changed.
    """
    wrong: list[str] = []
    for name, value in values.items():
        try:
            if name not in SETTINGS:
                raise SettingError(_no_such_setting(name))
            SETTINGS[name].check(value, f"override({name}={value!r})")
        except SettingError as error:
            wrong.append(str(error))
    if wrong:
        raise SettingError("\n".join(wrong))
    before = {name: getattr(settings, name) for name in values}
    try:
        for name, value in values.items():
            setattr(settings, name, value)
        yield settings
    finally:
        for name, value in before.items():
            setattr(settings, name, value)


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Settings with the values that the environment gives, and the defaults for the others.

    A variable that is set to nothing counts as not set. One that looks like a misspelt setting is warned of: it may
    also belong to a backend of another package, whose names we do not know.

    Raises:
        SettingError: variables have illegal values: all of them at once.
    """
    wrong: list[str] = []
    values: dict[str, Any] = {}
    variables = {setting.environment_variable: setting for setting in SETTINGS.values()}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or not text.strip():
            continue
        setting = variables.get(variable)
        if setting is None:
            near = difflib.get_close_matches(variable, variables, n=1, cutoff=0.85)
            if near:
                warnings.warn(
                    f"environment variable {variable} is no setting of torchport and has no effect; "
                    f"did you mean {near[0]}? {_SEE}",
                    stacklevel=2,
                )
            continue
        try:
            values[setting.name] = setting.parse(text)
        except SettingError as error:
            wrong.append(str(error))
    if wrong:
        raise SettingError("\n".join(wrong))
    return Settings(**values)


def describe() -> str:
    """The table as a Markdown page: docs/settings.md is this text (``make docs`` writes it)."""
    lines = [
        "<!-- Generated from src/torchport/config.py by `make docs`; change it there. -->",
        "",
        "# Settings",
        "",
        "Each setting has a default, an environment variable that is read when torchport is imported, and an attribute",
        "of `torchport.config.settings` that may be changed at any time. `torchport.config.override(name=value)` sets",
        "it for the length of a block. An illegal value raises `SettingError`, which names the legal ones.",
        "",
        "In the environment, a switch is `1`, `true`, `yes` or `on`; or `0`, `false`, `no` or `off`.",
        "",
    ]
    for s in SETTINGS.values():
        lines += [
            f"## {s.name}",
            "",
            s.meaning,
            "",
            f"- Type: `{s.type.__name__}`",
            f"- Default: `{s.default!r}`",
            f"- Legal: {s.rule.text}",
            f"- Environment: `{s.environment_variable}`",
            "",
        ]
    return "\n".join(lines)


settings: Settings = from_environment(os.environ)
"""The settings that all of torchport reads."""
