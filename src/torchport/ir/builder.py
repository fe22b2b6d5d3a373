"""The factory of nodes. A backend may return a subclass of it from ``get_ir_builder()``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from torchport.ir.call import DEVICE_DATA, SCALAR, TENSOR_LIST, Call, number, operand
from torchport.ir.location import Location
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape


@lru_cache(maxsize=4096)
def _device_data_call(shape: Shape) -> Call:
    return Call(DEVICE_DATA, outputs=(shape,))


class IrBuilder:
    """Makes the IR's nodes: the special ones by name, all others by :meth:`make_generic`."""

    def make_device_data(self, data: Any) -> Node:
        """A leaf for data (a ``BackendData``: something with a ``shape``) that is on the device already."""
        return Node(_device_data_call(data.shape), data=data)

    def make_scalar(self, value: bool | int | float | complex, dtype: torch.dtype, location: Location = None) -> Node:
        """A 0-dim tensor of that dtype; the value is an input of the graph."""
        call = Call(SCALAR, (number(0, type(value)),), outputs=(Shape(dtype, ()),))
        return Node(call, numbers=(value,), location=location)

    def make_cast(self, value: Value, dtype: torch.dtype, location: Location = None) -> Node:
        """The value converted to another dtype, in the same layout."""
        shape = value.shape
        out = Shape(dtype, shape.sizes, shape.strides, shape.symbolic)
        call = Call(torch.ops.aten._to_copy.default, (operand(0),), (("dtype", dtype),), (shape,), (out,))
        return Node(call, (value,), location=location)

    def make_expand(self, value: Value, sizes: tuple[int, ...], location: Location = None) -> Node:
        """The value broadcast to ``sizes``, without a copy.

        Raises:
            ValueError: the sizes do not broadcast.
        """
        shape = value.shape
        lead = len(sizes) - len(shape.sizes)
        if lead < 0 or any(n != m and n != 1 for n, m in zip(shape.sizes, sizes[lead:], strict=True)):
            raise ValueError(f"expand: {shape!r} does not broadcast to {sizes}")
        own = [0 if n == 1 != m else s for n, m, s in zip(shape.sizes, sizes[lead:], shape.strides, strict=True)]
        out = Shape(shape.dtype, sizes, (0,) * lead + tuple(own))
        call = Call(torch.ops.aten.expand.default, (operand(0), tuple(sizes)), (), (shape,), (out,))
        return Node(call, (value,), location=location)

    def make_tensor_list(self, values: Sequence[Value], location: Location = None) -> Node:
        """Several values as one node; output ``i`` is ``values[i]``."""
        shapes = tuple(v.shape for v in values)
        call = Call(TENSOR_LIST, (tuple(operand(i) for i in range(len(values))),), (), shapes, shapes)
        return Node(call, tuple(values), location=location)

    def make_generic(
        self,
        call: Call,
        operands: tuple[Value, ...],
        numbers: tuple[Any, ...] = (),
        location: Location = None,
    ) -> Node:
        """A node of any operator."""
        return Node(call, operands, numbers, location)
