"""The user's line behind an operation: the innermost frame that is neither PyTorch's nor ours."""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType

import torch

from torchport.ir.location import Location, SourceLocation

_INTERNAL = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, os.path.dirname(__file__))
)
_internal_by_file: dict[str, bool] = {}
_by_code: dict[tuple[int, int], tuple[CodeType, SourceLocation]] = {}
_backward: tuple[int, Location] = (-1, None)


def _is_internal(file: str) -> bool:
    found = _internal_by_file.get(file)
    if found is None:
        found = _internal_by_file[file] = file.startswith((*_INTERNAL, "<frozen", "<eval_with_key", "<torchport"))
    return found


def _locate(frame: FrameType | None, note: str = "") -> Location:
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
            if found is None or note:
                found = (code, SourceLocation(code, frame.f_lasti, note))
                if not note:
                    if len(_by_code) > 1 << 16:
                        _by_code.clear()
                    _by_code[key] = found
            return found[1]
        frame = frame.f_back
    return None


def user_location() -> Location:
    """The user's line that led to the current call.

    On one of autograd's threads there is no such frame: there it is the line that called backward, found once per
    backward pass.
    """
    found = _locate(sys._getframe(1))
    if found is None:
        task = torch._C._current_graph_task_id()
        if task != -1:
            return _backward_location(task)
    return found


def _backward_location(task: int) -> Location:
    global _backward
    if _backward[0] != task:
        here = threading.get_ident()
        location: Location = None
        for thread, frame in sys._current_frames().items():
            if thread != here and _runs_engine(frame):
                location = _locate(frame, "in backward")
                break
        _backward = (task, location)
    return _backward[1]


def _runs_engine(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back
    return False
