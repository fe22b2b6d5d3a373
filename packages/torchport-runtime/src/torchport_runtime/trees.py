"""How arguments and results are nested: flattened for a call, put together after it."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from torchport_runtime.errors import DamagedFileError, InvalidArgumentError
from torchport_runtime.fields import Field

_NAMED = ("namedtuple", "return_type", "dataclass", "mapping")
_KINDS = ("leaf", "none", "tuple", "list", "dict", *_NAMED)


@dataclass(frozen=True, slots=True)
class Tree:
    """The form of a nested value.

    Attributes:
        kind: ``leaf``; ``none`` for a ``None`` that is no leaf; ``tuple``, ``list``, ``dict``; ``namedtuple``;
            ``return_type``, a named tuple of ``torch.return_types``; ``dataclass``, which is a named tuple where its
            class is not; ``mapping``, a class of mappings, which is a dict where the class is not.
        children: of the items, in order.
        keys: of a dict or mapping, texts or whole numbers; of the others that have a name the fields.
        name: of a class; of a dataclass or mapping with its module, ``module:Class``.
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
        items = self._items(value)
        if items is None:
            raise InvalidArgumentError(f"{path or 'the arguments'}: {self._text()} is wanted, not {value!r:.60}")
        places = self.keys or range(len(items))
        for place, child, item in zip(places, self.children, items, strict=True):
            child._flatten(item, leaves, f"{path}[{place!r}]")

    def _items(self, value: Any) -> Sequence[Any] | None:
        """The items of a value; ``None`` where it has another form."""
        if self.kind == "none":
            return () if value is None else None
        if self.kind in ("dict", "mapping"):
            is_right = isinstance(value, Mapping) and set(value) == set(self.keys)
            return [value[k] for k in self.keys] if is_right else None
        names = [f.name for f in fields(value)] if is_dataclass(value) else getattr(value, "_fields", ())
        if self.kind in ("namedtuple", "dataclass") and (names or self.kind == "dataclass"):
            is_right = set(names) == set(self.keys) and (not isinstance(value, tuple) or names == self.keys)
            return [getattr(value, k) for k in self.keys] if is_right else None
        is_right = isinstance(value, list if self.kind == "list" else tuple) and len(value) == len(self.children)
        return value if is_right else None

    def _text(self) -> str:
        if self.kind == "none":
            return "None"
        keys = f" of {', '.join(map(str, self.keys))}" if self.keys else f" of {len(self.children)}"
        return f"a {self.kind.replace('_', ' ')}{f' {self.name}' * bool(self.name)}{keys}"

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value with these leaves."""
        return self.builder()(iter(leaves))

    def builder(self) -> Callable[[Iterator[Any]], Any]:
        """A function that takes leaves from an iterator and puts the value together."""
        if self.kind == "leaf":
            return next
        if self.kind == "none":
            return lambda leaves: None
        parts = [c.builder() for c in self.children]
        if self.kind == "list":
            return lambda leaves: [p(leaves) for p in parts]
        if self.kind == "tuple":
            return lambda leaves: tuple([p(leaves) for p in parts])
        if self.kind in ("dict", "mapping"):
            keys = self.keys
            return lambda leaves: {k: p(leaves) for k, p in zip(keys, parts, strict=True)}
        made = _named_tuple(self.simple_name, self.keys)
        return lambda leaves: made(*[p(leaves) for p in parts])

    @property
    def simple_name(self) -> str:
        """The class's name, without those of what it is in."""
        return self.name.rpartition(":")[2].rpartition(".")[2]

    def to_json(self) -> Any:
        """It as the manifest has it."""
        if self.kind == "leaf":
            return {"leaf": None}
        if self.kind == "none":
            return {"none": None}
        children = [c.to_json() for c in self.children]
        if self.kind == "dict":
            return {"dict": [[k, c] for k, c in zip(self.keys, children, strict=True)]}
        if self.kind in _NAMED:
            return {self.kind: [self.name, list(self.keys), children]}
        return {self.kind: children}

    @classmethod
    def from_json(cls, field: Field) -> Tree:
        """The form that :meth:`to_json` wrote."""
        kind, value = field.tag(*_KINDS)
        if kind in ("leaf", "none"):
            if value.value is not None:
                value.fail("null")
            return cls(kind)
        if kind == "dict":
            pairs = [pair.list_of(lambda f: f) for pair in value.items()]
            if any(len(p) != 2 for p in pairs):
                value.fail("pairs of a key and a form")
            keys = _keys(value, [p[0] for p in pairs])
            return cls("dict", tuple([cls.from_json(p[1]) for p in pairs]), keys)
        if kind in _NAMED:
            parts = value.list_of(lambda f: f)
            if len(parts) != 3:
                value.fail("a name, fields and forms")
            children = parts[2].list_of(cls.from_json)
            tree = cls(kind, children, _keys(parts[1], list(parts[1].items())), parts[0].text())
            if kind != "mapping":
                _named_tuple(tree.simple_name, tree.keys)
            if len(tree.keys) != len(children):
                value.fail("as many fields as forms")
            return tree
        return cls(kind, value.list_of(cls.from_json))


def _keys(whole: Field, keys: Sequence[Field]) -> tuple[Any, ...]:
    for key in keys:
        if type(key.value) not in (str, int):
            key.fail("a text or a whole number")
    found = tuple([k.value for k in keys])
    if len(set(found)) != len(found):
        whole.fail("keys that differ")
    return found


@cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    """A class for results on a target, which need not have the one of the host."""
    if not name.isidentifier() or not all(str(f).isidentifier() and not str(f).startswith("_") for f in fields):
        raise DamagedFileError(f"manifest.json: {name!r} with fields {list(fields)} can be no named tuple")
    try:
        return namedtuple(name, fields)
    except ValueError as error:
        raise DamagedFileError(f"manifest.json: no named tuple: {error}") from error
