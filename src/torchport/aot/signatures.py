"""Why arguments do not fit a signature."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any


def obstacle(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What is in the way, names that it does not take first; empty where the arguments fit."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return _unknown(signature, kwargs) or str(error)
    return ""


def _unknown(signature: inspect.Signature, kwargs: Mapping[str, Any]) -> str:
    kinds = [p.kind for p in signature.parameters.values()]
    names = [
        n
        for n, p in signature.parameters.items()
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    wrong = [] if inspect.Parameter.VAR_KEYWORD in kinds else [name for name in kwargs if name not in names]
    told = []
    for name in wrong:
        near = difflib.get_close_matches(name, names, 1)
        told.append(f"got an unexpected keyword argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return ", ".join(told)
