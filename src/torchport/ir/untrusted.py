"""Which operators a graph from a file may call: those that compute results from operands, and do nothing else.

A file may come from a stranger. PyTorch's operators include some that open files, that write to their operands, or that
believe sizes and indices that they are given; none of these is needed to compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from torchport.config import settings

_TRUSTED = frozenset({"aten", "prims", "port", "quantized_decomposed"})
_OPENS_FILES = frozenset({"from_file"})
# Kernels that do not check that a layout or an index lies within memory, and helpers of PyTorch's own tests.
_BELIEVES = frozenset({"_reshape_alias", "_reshape_alias_copy", "as_strided_", "_foobar"})
_BELIEVES_PREFIXES = ("_nested_", "_test_", "_sparse_", "_cslt_", "_make_per_")

_reading: ContextVar[bool] = ContextVar("reading a file", default=False)


@contextmanager
def graphs_from_a_file() -> Iterator[None]:
    """Graphs that are parsed inside come from a file, whoever parses them."""
    token = _reading.set(True)
    try:
        yield
    finally:
        _reading.reset(token)


def refusal(op: Any) -> str:
    """Why a graph that is parsed now may not call an operator; empty where it may."""
    if not _reading.get():
        return ""
    if isinstance(op, HigherOrderOperator):
        return "it runs other code"
    if not isinstance(op, OpOverload):
        return ""
    if op.namespace not in _TRUSTED:
        trusted = {name.strip() for name in settings.trusted_namespaces.split(",")}
        if op.namespace not in trusted:
            return (
                f"it is no operator of PyTorch's own; if you trust the file, set "
                f"torchport.config.settings.trusted_namespaces to {op.namespace!r}"
            )
    name = op._schema.name.partition("::")[2]
    if name in _OPENS_FILES:
        return "it opens files"
    if name in _BELIEVES or name.startswith(_BELIEVES_PREFIXES) or name.endswith("_unsafe"):
        return "it does not check what it is given"
    if any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments):
        return "it writes to its operands"
    if any(isinstance(a.type, torch.StringType) and a.name in ("filename", "path") for a in op._schema.arguments):
        return "it opens files"
    return ""
