"""``torchport run``: one call of a method of a saved module, by any of torchport's backends."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

from torchport.aot.restoring import load
from torchport.errors import UnsupportedOperationError
from torchport_runtime.command import run as runtime_run

SUMMARY = runtime_run.SUMMARY
add_arguments = runtime_run.add_arguments


def run(arguments: argparse.Namespace) -> int:
    """Call the method, write and print its results; returns 0."""
    return runtime_run.run(arguments, _caller)


def _caller(path: str, fallback: str | None, method: str) -> Callable[..., Any]:
    function = getattr(load(path, fallback), method)

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(numpy.ndarray, _tensor, (args, kwargs))
        return pytree.tree_map_only(torch.Tensor, _array, function(*args, **kwargs))

    return call


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(numpy.array(array))


def _array(tensor: torch.Tensor) -> Any:
    try:
        return tensor.detach().cpu().numpy()
    except TypeError as error:
        raise UnsupportedOperationError(
            f"a result is of {tensor.dtype}, which numpy lacks; lower the module so that it returns another dtype"
        ) from error
