"""What a parser makes of a text: the one thing that differs between a host with PyTorch and a target without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Makers(Protocol):
    """Makes the objects of a graph.

    Attributes:
        dtypes: short name (``f32``) → what stands for the scalar type.
        constants: qualified name (``torch.strided``) → what stands for it.
    """

    @property
    def dtypes(self) -> Mapping[str, Any]:
        """The scalar types."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """Layouts and memory formats."""

    def device(self, name: str) -> Any:
        """A device.

        Raises:
            ValueError, RuntimeError: there is no such device.
        """

    def shape(
        self,
        dtype: Any,
        sizes: tuple[int, ...],
        strides: tuple[int, ...] | None,
        symbolic: tuple[bool | str, ...],
    ) -> Any:
        """A shape; row-major where there are no strides."""

    def operator(self, name: str) -> Any:
        """An operator; ``None`` where there is none of this name."""

    def operator_names(self) -> Sequence[str]:
        """The names of all operators, for a hint."""

    def operand(self, index: int) -> Any:
        """The place of an operand in a call's arguments."""

    def number(self, index: int, type: type) -> Any:
        """The place of a number in a call's arguments."""

    def leaf(self, shape: Any, location: str | None) -> Any:
        """The node of a tensor input."""

    def call(
        self,
        operator: Any,
        args: tuple[Any, ...],
        kwargs: tuple[tuple[str, Any], ...],
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
    ) -> Any:
        """An operator with its arguments; made once for equal ones."""

    def node(self, call: Any, operands: tuple[Any, ...], numbers: tuple[Any, ...], location: str | None) -> Any:
        """A node."""

    def value(self, node: Any, index: int) -> Any:
        """A result of a node."""

    def shape_of(self, value: Any) -> Any:
        """The shape of a value."""

    def node_of(self, value: Any) -> Any:
        """The node that makes a value."""

    def graph(self, nodes: list[Any], results: list[Any]) -> Any:
        """The graph."""
