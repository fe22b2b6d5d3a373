"""Programs of jax: compiled here, or exported and loaded; and tensors as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import torch

from torchport.backends.xla.lowering.dtypes import JAX
from torchport.backends.xla.options import XlaOptions


class Program:
    """A function of jax, compiled when it is first called.

    jax computes in 64 bits only where it is told so; here it always is, within these calls.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Any, ...]],
        inputs: Sequence[torch.Tensor],
        donated: Sequence[int],
        options: XlaOptions,
    ) -> None:
        self._options = options
        self._specs = [jax.ShapeDtypeStruct(tuple(x.shape), JAX[x.dtype]) for x in inputs]

        def precise(*arrays: Any) -> tuple[Any, ...]:
            with jax.default_matmul_precision(options.precision):
                return function(*arrays)

        self._function = precise
        with jax.enable_x64(True):
            self._compiled = jax.jit(precise, donate_argnums=tuple(donated)).lower(*self._specs).compile()

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The outputs."""
        with jax.enable_x64(True):
            outputs: Sequence[Any] = self._compiled(*inputs)
        return outputs

    def export(self) -> bytes:
        """StableHLO for the platforms of the options."""
        platforms = self._options.platforms.split("+") if self._options.platforms else None
        with jax.enable_x64(True):
            exported = jax.export.export(jax.jit(self._function), platforms=platforms)(*self._specs)
        return bytes(exported.serialize())


class Exported:
    """What :meth:`Program.export` wrote, loaded."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @cached_property
    def _call(self) -> Callable[..., Any]:
        with jax.enable_x64(True):
            exported = jax.export.deserialize(bytearray(self._content))
            call: Callable[..., Any] = jax.jit(exported.call)
            return call

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The outputs."""
        with jax.enable_x64(True):
            outputs: Sequence[Any] = self._call(*inputs)
        return outputs

    def export(self) -> bytes:
        """What it was loaded from."""
        return self._content


def to_jax(tensor: torch.Tensor) -> Any:
    """An array with the values of a tensor on the CPU; jax may read the tensor's own memory where that is row-major.

    A tensor of a type that jax lacks stays what it is: no program reads it.
    """
    if tensor.dtype not in JAX:
        return tensor
    tensor = tensor.detach().contiguous()
    with jax.enable_x64(True):
        if tensor.dtype is torch.bfloat16:  # numpy has no such type
            return jnp.from_dlpack(tensor)
        return jax.device_put(tensor.numpy())


def to_torch(array: Any) -> torch.Tensor:
    """A tensor on the array's memory."""
    if isinstance(array, torch.Tensor):
        return array
    array.block_until_ready()
    tensor: torch.Tensor = torch._C._from_dlpack(array.__dlpack__())
    return tensor


def copied(array: Any) -> Any:
    """An array of its own."""
    if isinstance(array, torch.Tensor):
        return array.clone()
    with jax.enable_x64(True):
        return jnp.array(array, copy=True)
