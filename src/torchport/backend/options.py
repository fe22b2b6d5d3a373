"""Options of a backend: frozen dataclasses, given as objects, as mappings, or as text."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from typing import Any

from torchport.errors import BackendOptionError


@dataclasses.dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of a backend that has none."""


def split_name(text: str) -> tuple[str, str]:
    """The backend and the options of a text as ``iree{target_cpu=x86-64-v4}``; without braces there are no options.

    Raises:
        BackendOptionError: a brace is missing.
    """
    name, brace, rest = text.partition("{")
    if not brace:
        return text, ""
    if not rest.endswith("}"):
        raise BackendOptionError(f"{text!r}: the options have to end with '}}', as in 'iree{{target_cpu=x86-64-v4}}'")
    return name.strip(), rest[:-1].strip()


def parse_options(kind: type, given: Any, default: Any) -> Any:
    """An instance of a backend's options.

    Args:
        kind: the dataclass.
        given: an instance of it, a mapping, a text as ``target_cpu=x86-64-v4,level=3``, or ``None``.
        default: what is meant by ``None``, and for what a mapping or a text leaves out.

    Raises:
        BackendOptionError: an option does not exist, or a value is of another type; every mistake is listed.
    """
    if given is None:
        return default
    if isinstance(given, kind):
        return given
    if isinstance(given, str):
        given = options_of(given)
    if not isinstance(given, Mapping):
        raise BackendOptionError(f"options are a {kind.__name__}, a mapping or a text, not {given!r}")
    types = typing.get_type_hints(kind)
    problems, values = [], {}
    for name, value in given.items():
        if name not in types:
            near = difflib.get_close_matches(str(name), types, 1)
            known = ", ".join(types) or "none"
            problems.append(f"there is no option {name!r}{f'; did you mean {near[0]!r}?' if near else ''}: {known}")
            continue
        try:
            values[name] = _converted(types[name], value)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise BackendOptionError(f"{kind.__name__}: {'; '.join(problems)}")
    return dataclasses.replace(default, **values)


def options_of(text: str) -> dict[str, str]:
    """The options of a text as ``target_cpu=x86-64-v4,level=3``, by name.

    Raises:
        BackendOptionError: a part is not of the form name=value.
    """
    found = {}
    for part in filter(str.strip, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise BackendOptionError(f"{part.strip()!r} has to be name=value, as in 'target_cpu=x86-64-v4,level=3'")
        found[name.strip()] = value.strip()
    return found


def _converted(kind: Any, value: Any) -> Any:
    choices = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(map(repr, choices))}")
        return value
    kinds = [k for k in choices if k is not type(None)] if choices else [kind]
    if value is None and type(None) in choices:
        return None
    for one in kinds:
        if typing.get_origin(one) is typing.Literal and value in typing.get_args(one):
            return value
        if isinstance(one, type) and type(value) is one:
            return value
        if isinstance(value, str) and one in (int, float):
            try:
                return one(value)
            except ValueError:
                continue
        if isinstance(value, str) and one is bool and value.lower() in ("true", "false", "1", "0"):
            return value.lower() in ("true", "1")
        if one is float and type(value) is int:
            return float(value)
    raise ValueError(f"{value!r} is no {' or '.join(getattr(k, '__name__', str(k)) for k in kinds)}")
