"""The fastest callable that is certain to run a given overload.

PyTorch's Python bindings (``torch.add``, ``torch._C._nn.gelu``, ``torch.Tensor.expand``, …) parse their arguments
faster than ``torch.ops`` does (about two thirds of the time of ``OpOverload._op`` for a small ``add``), and choose an
overload by the arguments' types. Which one they choose is not guessed: each candidate is called once under a dispatch
mode that records the overload and the arguments that reach the dispatcher, and stops there, so nothing is computed. A
candidate that does not arrive at the same overload with the same arguments is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_NAMESPACES: tuple[Any, ...] = tuple(
    getattr(torch._C, name)
    for name in ("_VariableFunctions", "_nn", "_linalg", "_fft", "_special", "TensorBase")
    if hasattr(torch._C, name)
)


class _ReachedDispatcherError(BaseException):
    """Stops a probe. Not an ``Exception``, so that no operator written in Python swallows it."""


class _Recorder(TorchDispatchMode):
    """Records the first overload that is dispatched, and stops."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reached: tuple[OpOverload, tuple[Any, ...], dict[str, Any]] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reached = (func, args, kwargs or {})
        raise _ReachedDispatcherError


def reaches(
    function: Callable[..., Any], op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, str]:
    """Whether calling the function dispatches that overload with these arguments; where not, why."""
    recorder = _Recorder()
    try:
        with (
            torch._C.DisableTorchFunction(),
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._PreserveDispatchKeyGuard(),
            recorder,
        ):
            # The caller may have dispatch modes off: a kernel, for example, or a running program.
            for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot):
                torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
            function(*args, **kwargs)
    except _ReachedDispatcherError:
        pass
    except Exception as error:  # noqa: BLE001 - a binding may refuse arguments with any error; the reason is returned
        return False, str(error).splitlines()[0] if str(error) else type(error).__name__
    if recorder.reached is None:
        return False, "returns without dispatching"
    reached, reached_args, reached_kwargs = recorder.reached
    if reached is not op:
        return False, f"dispatches {reached}"
    expected = _by_name(op, args, kwargs)
    arrived = _by_name(op, reached_args, reached_kwargs)
    # A binding fills in ``pin_memory=False`` where nothing was given.
    same = all(_same(expected[n], arrived[n]) for n in expected if n != "pin_memory")
    return same, "" if same else "dispatches other arguments"


def _by_name(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    values = {}
    for i, argument in enumerate(op._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        values[argument.name] = args[i] if i < len(args) else kwargs.get(argument.name, default)
    return values


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    if isinstance(a, (tuple, list)) or isinstance(b, (tuple, list)):
        a, b = _listed(a), _listed(b)
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (bool, int, float, complex)) and isinstance(b, (bool, int, float, complex)):
        return a == b or (a != a and b != b)
    return a is b or bool(a == b)


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (tuple, list)) else [x]


def _candidates(op: OpOverload) -> Iterator[Callable[..., Any]]:
    if op.namespace != "aten":
        return
    name = op._schema.name.partition("::")[2]
    for namespace in _NAMESPACES:
        function = getattr(namespace, name, None)
        if callable(function):
            yield function


def fastest(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """A callable that runs this overload for arguments of these types.

    Args:
        op: the overload.
        args: examples of the positional arguments; tensors may be on the meta device.
        kwargs: the same for keyword arguments.
    """
    for function in _candidates(op):
        if reaches(function, op, args, kwargs)[0]:
            return function
    raw: Callable[..., Any] = op._op
    return raw
