"""Errors of computations that are also of the type that eager PyTorch raises, so that ``except IndexError`` finds them.

They come later than in eager, where the value is read; what a program catches there is the same.
"""

from __future__ import annotations

from functools import cache

import torch

from torchport.errors import ExecutionError

_KINDS = (
    IndexError,
    ValueError,
    TypeError,
    ZeroDivisionError,
    NotImplementedError,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]  # not in its __all__
    torch.OutOfMemoryError,
)


@cache
def _also(kind: type[Exception]) -> type[ExecutionError]:
    return type("ExecutionError", (ExecutionError, kind), {"__module__": ExecutionError.__module__})


def execution_error(message: str, cause: BaseException | None) -> ExecutionError:
    """An :class:`ExecutionError` that is also of the type of what caused it, where programs catch that type."""
    while cause is not None:
        for kind in _KINDS:
            if isinstance(cause, kind):
                return _also(kind)(message)
        cause = cause.__cause__ or cause.__context__
    return ExecutionError(message)
