"""A method's public type, and the explicit way to its graph."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torchport.aot.method import Method
from torchport.errors import InvalidArgumentError
from torchport.ir.graph import Graph


class Function(ABC):
    """A method: a name, a signature, a call. That there is a graph behind it is no part of the type."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The method's name."""

    @property
    @abstractmethod
    def signature(self) -> inspect.Signature:
        """What it takes."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The method's result."""


class GraphFunction(Function):
    """A method with a graph.

    Args:
        method: the method.
        run: what runs it.
    """

    def __init__(self, method: Method, run: Callable[[tuple[Any, ...], Mapping[str, Any]], Any]) -> None:
        self._method = method
        self._run = run
        self.__signature__ = inspect.Signature(method.parameters)
        self.__name__ = method.name

    @property
    def name(self) -> str:
        """The method's name."""
        return self._method.name

    @property
    def signature(self) -> inspect.Signature:
        """What it takes."""
        return self.__signature__

    @property
    def graph(self) -> Graph:
        """What is called in order; ``port.partition`` nodes are the backend's parts."""
        return self._method.graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The method's result."""
        return self._run(args, kwargs)

    def __repr__(self) -> str:
        return f"GraphFunction({self.name}{self.__signature__})"


def as_graph_function(function: object) -> GraphFunction:
    """The function as one that has a graph.

    Raises:
        InvalidArgumentError: it has none.
    """
    found = try_as_graph_function(function)
    if found is None:
        raise InvalidArgumentError(
            f"as_graph_function({function!r:.80}): a {type(function).__name__} has no graph; methods of a "
            "LoweredModule have one"
        )
    return found


def try_as_graph_function(function: object) -> GraphFunction | None:
    """The function as one that has a graph; ``None`` when it has none."""
    return function if isinstance(function, GraphFunction) else None
