"""The user's line behind an operation: the innermost frame that is neither PyTorch's nor ours."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType

import torch

from torchport.ir.location import Location, SourceLocation

_INTERNAL = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, os.path.dirname(__file__))
)
_internal_by_file: dict[str, bool] = {}
_by_code: dict[tuple[int, int], tuple[CodeType, SourceLocation]] = {}


def _is_internal(file: str) -> bool:
    found = _internal_by_file.get(file)
    if found is None:
        found = _internal_by_file[file] = file.startswith((*_INTERNAL, "<frozen", "<eval_with_key", "<torchport"))
    return found


def _locate(frame: FrameType | None) -> Location:
    files = _internal_by_file
    while frame is not None:
        code = frame.f_code
        internal = files.get(code.co_filename)
        if internal is None:
            internal = _is_internal(code.co_filename)
        if not internal:
            # One object per place: a location is kept by every node that was made there. The code object is kept with
            # it, so that its id stays its own.
            key = (id(code), frame.f_lasti)
            found = _by_code.get(key)
            if found is None:
                if len(_by_code) > 1 << 16:
                    _by_code.clear()
                found = _by_code[key] = (code, SourceLocation(code, frame.f_lasti))
            return found[1]
        frame = frame.f_back
    return None


def user_location() -> Location:
    """The user's line that led to the current call; in a backward pass, the line that called backward."""
    return _locate(sys._getframe(1))
