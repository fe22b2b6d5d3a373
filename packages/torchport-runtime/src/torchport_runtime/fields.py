"""Reading JSON strictly: every error names the path, what was expected, and what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from torchport_runtime.errors import DamagedFileError

T = TypeVar("T")
_DEEPEST = 200


class Field:
    """A value of a JSON document, and where it stands.

    Args:
        value: the value.
        path: where, as ``methods.forward.inputs[0]``.
    """

    __slots__ = ("path", "value")

    def __init__(self, value: Any, path: str) -> None:
        self.value = value
        self.path = path

    def fail(self, expected: str) -> NoReturn:
        """Raises the error that something else was expected here."""
        found = json.dumps(self.value, default=str)
        raise DamagedFileError(
            f"manifest.json: {self.path or 'the whole'}: expected {expected}, found {found[:80]}"
            f"{'…' if len(found) > 80 else ''}"
        )

    def of(self, kind: type[T], expected: str) -> T:
        """The value, which is of this very type (a bool is no int here)."""
        if type(self.value) is not kind:
            self.fail(expected)
        value: T = self.value
        return value

    def text(self) -> str:
        """The value, a text."""
        return self.of(str, "a text")

    def whole(self, low: int = 0) -> int:
        """The value, a whole number of at least ``low``."""
        value = self.of(int, "a whole number")
        if value < low:
            self.fail(f"a whole number from {low}")
        return value

    def flag(self) -> bool:
        """The value, true or false."""
        return self.of(bool, "true or false")

    def one_of(self, *legal: str) -> str:
        """The value, one of these texts."""
        if self.value not in legal:
            self.fail(" or ".join(map(repr, legal)))
        return str(self.value)

    def items(self) -> Iterator[Field]:
        """The items of a list."""
        for i, item in enumerate(self.of(list, "a list")):
            yield Field(item, f"{self.path}[{i}]")

    def list_of(self, read: Callable[[Field], T]) -> tuple[T, ...]:
        """The items of a list, each read."""
        return tuple([read(item) for item in self.items()])

    def entries(self) -> Iterator[tuple[str, Field]]:
        """The entries of an object."""
        for key, value in self.of(dict, "an object").items():
            yield key, Field(value, f"{self.path}.{key}" if self.path else key)

    def map_of(self, read: Callable[[Field], T]) -> dict[str, T]:
        """The entries of an object, each read."""
        return {key: read(field) for key, field in self.entries()}

    def record(self, *required: str, optional: tuple[str, ...] = ()) -> dict[str, Field]:
        """The entries of an object that has exactly these keys, optional ones apart."""
        found = dict(self.entries())
        missing = [k for k in required if k not in found]
        unknown = [k for k in found if k not in required and k not in optional]
        if missing or unknown:
            parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has unknown {', '.join(unknown)}"] * bool(
                unknown
            )
            raise DamagedFileError(f"manifest.json: {self.path or 'the whole'} {' and '.join(parts)}")
        return found

    def tag(self, *legal: str) -> tuple[str, Field]:
        """The only key of an object, and its value."""
        found = list(self.entries())
        if len(found) != 1 or found[0][0] not in legal:
            self.fail(f"an object with one of the keys {', '.join(legal)}")
        return found[0]


def parse_json(text: bytes) -> Field:
    """The document of a text.

    Raises:
        DamagedFileError: it is no JSON, has a key twice, or is nested too deep.
    """
    try:
        document = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"manifest.json is not JSON: {error}") from error
    _check_depth(document)
    return Field(document, "")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(_DEEPEST):
        level = [x for v in level if isinstance(v, (dict, list)) for x in (v.values() if isinstance(v, dict) else v)]
        if not level:
            return
    raise DamagedFileError(f"manifest.json is nested more than {_DEEPEST} deep")
