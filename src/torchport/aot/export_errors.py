"""Why ``torch.export`` refused a method, and what to do about it."""

from __future__ import annotations

import traceback
from itertools import takewhile
from pathlib import Path

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_OF_SHAPES = ("dynamic_shapes", "Constraints violated", "specialized", "not in range")
_OF_VALUES = ("data-dependent", "numpy()", "data pointer", "data_ptr", ".item()", "tolist()")

ON_VALUES = (
    "A Python branch, a size or a number depends on the values of a tensor there. Choose with torch.where or "
    "torch.cond, keep numbers in tensors, or pass the number as an argument."
)
_ON_SHAPES = (
    "Correct dynamic_shapes: for each argument, as it is nested, {dimension: Dim('name', min=…, max=…)} or None. "
    "Examples lie in that range and are 2 or more, and the module computes with these sizes only what holds for all."
)
_ON_TYPES = (
    "Arguments and results are tensors, numbers, texts, and tuples, lists and dicts of them, or of classes that "
    "torch.utils._pytree has registered."
)
_ON_THE_REST = (
    "Call it in eager with these example arguments; if that works, torch.export has no form for what is done there. "
    "Write it with PyTorch's operators, or lower only submodules, each by a to_backend of its own."
)


def reason_and_remedy(error: Exception, has_dynamic_shapes: bool) -> str:
    """What torch says, where in the user's code, and what to do.

    Args:
        error: what ``torch.export.export`` raised.
        has_dynamic_shapes: whether sizes were to vary.
    """
    said = str(error).strip()
    # Up to the first empty line; torch's advice on flags of its own follows.
    lines = list(takewhile(str.strip, said.splitlines())) or [""]
    lines[0] = lines[0] if isinstance(error, RuntimeError | ValueError) and said else _with_type(error, lines[0])
    where = _place(error)
    return "\n  ".join(lines) + (f"\n  at {where}" if where else "") + f"\n{_remedy(error, said, has_dynamic_shapes)}"


def _with_type(error: Exception, text: str) -> str:
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _place(error: Exception) -> str:
    """The innermost line that is neither torch's nor ours."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*_FOLDERS, "<")):
            return f"{frame.filename}:{frame.lineno}" if frame.line and "to_backend(" not in frame.line else ""
    return ""


def _remedy(error: Exception, said: str, has_dynamic_shapes: bool) -> str:
    if isinstance(error, GuardOnDataDependentSymNode) or any(x in said for x in _OF_VALUES):
        return ON_VALUES
    if has_dynamic_shapes and any(x in said for x in _OF_SHAPES):
        return _ON_SHAPES
    if "not a known type" in said or "Unsupported input type" in said or "pytree" in said:
        return _ON_TYPES
    return _ON_THE_REST
