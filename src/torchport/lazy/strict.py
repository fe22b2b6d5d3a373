"""Strict mode: what would happen silently and slowly raises instead, with the user's line."""

from __future__ import annotations

from types import TracebackType

from torchport.config import settings


class set_strict:  # noqa: N801 - a function that is also a context manager, as torch.set_grad_enabled is
    """Forbids fallbacks and implicit syncs, from now on or for a ``with`` block.

    Args:
        fallback: an operator that would run eagerly raises ``StrictModeError``.
        implicit_sync: reading a value that is still pending raises ``StrictModeError``.

    Example:
        >>> import torch, torchport
        >>> x = torch.ones(2, device="port")
        >>> with torchport.set_strict(implicit_sync=True):
        ...     (x + 1).sum().item()
        Traceback (most recent call last):
        torchport.errors.StrictModeError: ...
    """

    def __init__(self, fallback: bool = False, implicit_sync: bool = False) -> None:
        self._before = (settings.strict_fallback, settings.strict_implicit_sync)
        settings.strict_fallback = fallback
        settings.strict_implicit_sync = implicit_sync

    def __enter__(self) -> set_strict:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        settings.strict_fallback, settings.strict_implicit_sync = self._before
