"""How arguments and results are nested: flattened for a call, put together after it."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchport_runtime.errors import DamagedFileError, InvalidArgumentError
from torchport_runtime.fields import Field

_KINDS = ("leaf", "tuple", "list", "dict", "namedtuple")


@dataclass(frozen=True, slots=True)
class Tree:
    """The form of a nested value.

    Attributes:
        kind: ``leaf``, ``tuple``, ``list``, ``dict`` or ``namedtuple``.
        children: of the items, in order.
        keys: of a dict, texts or whole numbers; of a named tuple the fields.
        name: of a named tuple.
    """

    kind: str
    children: tuple[Tree, ...] = ()
    keys: tuple[Any, ...] = ()
    name: str = ""

    @property
    def leaf_count(self) -> int:
        """How many leaves it has."""
        return 1 if self.kind == "leaf" else sum(c.leaf_count for c in self.children)

    def flatten(self, value: Any) -> list[Any]:
        """The leaves of a value of this form.

        Raises:
            InvalidArgumentError: it has another form.
        """
        leaves: list[Any] = []
        self._flatten(value, leaves, "")
        return leaves

    def _flatten(self, value: Any, leaves: list[Any], path: str) -> None:
        if self.kind == "leaf":
            leaves.append(value)
            return
        if self.kind == "dict":
            if not isinstance(value, dict) or set(value) != set(self.keys):
                raise InvalidArgumentError(f"{path or 'the arguments'}: a dict of {list(self.keys)} is wanted")
            items: Sequence[Any] = [value[k] for k in self.keys]
        else:
            kind = list if self.kind == "list" else tuple
            if not isinstance(value, kind) or len(value) != len(self.children):
                raise InvalidArgumentError(
                    f"{path or 'the arguments'}: a {self.kind} of {len(self.children)} is wanted, not {value!r:.60}"
                )
            items = value
        for i, (child, item) in enumerate(zip(self.children, items, strict=True)):
            child._flatten(item, leaves, f"{path}[{self.keys[i] if self.kind == 'dict' else i!r}]")

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value with these leaves."""
        return self.builder()(iter(leaves))

    def builder(self) -> Callable[[Iterator[Any]], Any]:
        """A function that takes leaves from an iterator and puts the value together."""
        if self.kind == "leaf":
            return next
        parts = [c.builder() for c in self.children]
        if self.kind == "list":
            return lambda leaves: [p(leaves) for p in parts]
        if self.kind == "tuple":
            return lambda leaves: tuple([p(leaves) for p in parts])
        if self.kind == "dict":
            keys = self.keys
            return lambda leaves: {k: p(leaves) for k, p in zip(keys, parts, strict=True)}
        made = _named_tuple(self.name, self.keys)
        return lambda leaves: made(*[p(leaves) for p in parts])

    def to_json(self) -> Any:
        """It as the manifest has it."""
        if self.kind == "leaf":
            return {"leaf": None}
        children = [c.to_json() for c in self.children]
        if self.kind == "dict":
            return {"dict": [[k, c] for k, c in zip(self.keys, children, strict=True)]}
        if self.kind == "namedtuple":
            return {"namedtuple": [self.name, list(self.keys), children]}
        return {self.kind: children}

    @classmethod
    def from_json(cls, field: Field) -> Tree:
        """The form that :meth:`to_json` wrote."""
        kind, value = field.tag(*_KINDS)
        if kind == "leaf":
            if value.value is not None:
                value.fail("null")
            return cls("leaf")
        if kind == "dict":
            pairs = [pair.list_of(lambda f: f) for pair in value.items()]
            if any(len(p) != 2 for p in pairs):
                value.fail("pairs of a key and a form")
            keys = tuple([_key(p[0]) for p in pairs])
            if len(set(keys)) != len(keys):
                value.fail("keys that differ")
            return cls("dict", tuple([cls.from_json(p[1]) for p in pairs]), keys)
        if kind == "namedtuple":
            parts = value.list_of(lambda f: f)
            if len(parts) != 3:
                value.fail("a name, fields and forms")
            children = parts[2].list_of(cls.from_json)
            tree = cls("namedtuple", children, parts[1].list_of(Field.text), parts[0].text())
            _named_tuple(tree.name, tree.keys)
            if len(tree.keys) != len(children):
                value.fail("as many fields as forms")
            return tree
        return cls(kind, value.list_of(cls.from_json))


def _key(field: Field) -> Any:
    if type(field.value) not in (str, int):
        field.fail("a text or a whole number")
    return field.value


@cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    """A class for results on a target, which need not have the one of the host."""
    if not name.isidentifier() or not all(f.isidentifier() and not f.startswith("_") for f in fields):
        raise DamagedFileError(f"manifest.json: {name!r} with fields {list(fields)} can be no named tuple")
    try:
        return namedtuple(name, fields)
    except ValueError as error:
        raise DamagedFileError(f"manifest.json: no named tuple: {error}") from error
