"""Statements that make views, and places: unnamed views for others to write to."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from programs.facts import is_exact, is_inexact
from programs.forms import Form
from programs.scene import Scene, Unavailable

FAMILY = "view"
View = Callable[[Scene, str, torch.Tensor], str]


def _some_dim(scene: Scene, t: torch.Tensor) -> int:
    """A dim that has elements.

    Raises:
        Unavailable: it has none.
    """
    return scene.choice([i for i, n in enumerate(t.shape) if n > 0])


def narrow(scene: Scene, x: str, t: torch.Tensor) -> str:
    dim = _some_dim(scene, t)
    start = scene.integer(0, t.shape[dim] - 1)
    length = scene.integer(0 if scene.once_in(8) else 1, t.shape[dim] - start + scene.once_in(30))
    return f"{x}.narrow({dim}, {start}, {length})"


def select(scene: Scene, x: str, t: torch.Tensor) -> str:
    dim = _some_dim(scene, t)
    return f"{x}.select({dim}, {scene.integer(-t.shape[dim], t.shape[dim] - 1)})"


def subscript(scene: Scene, x: str, t: torch.Tensor) -> str:
    """Integers, slices with steps, None and an ellipsis."""
    parts = []
    for n in t.shape[: scene.integer(0, t.dim())]:
        kind = scene.integer(0, 4)
        if kind == 0 and n:
            parts.append(str(scene.integer(-n, n - 1)))
        elif kind == 1:
            parts.append(f"{scene.integer(0, 1)}::{scene.integer(2, 3)}")
        elif kind == 2:
            parts.append(f"{scene.integer(-n, n)}:")
        elif kind == 3:
            parts.append(f":{scene.integer(-1, n)}")
        else:
            parts.append(":")
    if scene.once_in(4):
        parts.insert(scene.integer(0, len(parts)), "None")
    if scene.once_in(4) or not parts:
        parts.insert(scene.integer(0, len(parts)) if len(parts) == t.dim() else len(parts), "...")
    return f"{x}[{', '.join(parts)}]"


def transposed(scene: Scene, x: str, t: torch.Tensor) -> str:
    name = scene.choice(("transpose", "t", "permute", "movedim", "mT", "swapaxes", "T"))
    if name == "t":
        return f"{x}.t()"
    if name in ("mT", "T"):
        return f"{x}.{name}"
    if name == "permute":
        dims = list(range(t.dim()))
        order = [dims.pop(scene.integer(0, len(dims) - 1)) for _ in t.shape]
        return f"{x}.permute({order})"
    return f"{x}.{name}({scene.dim(t)}, {scene.dim(t)})"


def resized(scene: Scene, x: str, t: torch.Tensor) -> str:
    """view, reshape, flatten, unflatten."""
    name = scene.choice(("view", "reshape", "flatten", "unflatten"))
    if name == "flatten":
        return f"{x}.flatten()" if scene.once_in(2) else f"{x}.flatten({scene.integer(0, max(t.dim() - 1, 0))})"
    if name == "unflatten":
        dim = scene.choice([i for i, n in enumerate(t.shape) if n in (2, 4, 6, 8)])
        return f"{x}.unflatten({dim}, (2, -1))"
    if t.numel() == 0:
        return f"{x}.{name}({[0, *t.shape[:0], scene.integer(1, 3)]})"
    divisor = scene.choice([d for d in range(1, t.numel() + 1) if t.numel() % d == 0])
    rest = t.numel() // divisor
    sizes = scene.choice(([divisor, rest], [rest, 1, divisor], [-1], [divisor, -1], [t.numel()], [1, -1, rest]))
    return f"{x}.{name}({sizes})"


def with_ones(scene: Scene, x: str, t: torch.Tensor) -> str:
    """squeeze, unsqueeze."""
    kind = scene.integer(0, 2)
    if kind == 0:
        return f"{x}.unsqueeze({scene.integer(-t.dim() - 1, t.dim())})"
    return f"{x}.squeeze()" if kind == 1 else f"{x}.squeeze({scene.dim(t)})"


def expanded(scene: Scene, x: str, t: torch.Tensor) -> str:
    sizes = [scene.integer(1, 3) if n == 1 else n if scene.once_in(2) else -1 for n in t.shape]
    if t.numel() * math.prod(abs(s) for s in sizes) > 400:
        raise Unavailable
    if scene.once_in(2):
        sizes.insert(0, scene.integer(1, 3))
    if scene.once_in(3):
        sizes = [s if s != -1 else n for s, n in zip(sizes[::-1], list(t.shape)[::-1], strict=False)][::-1]
        return f"torch.broadcast_to({x}, {sizes})"
    return f"{x}.expand({sizes})"


def diagonal(scene: Scene, x: str, t: torch.Tensor) -> str:
    if t.dim() < 2:
        raise Unavailable
    if t.dim() == 2 or scene.once_in(2):
        return f"{x}.diagonal({scene.integer(-1, 1)})"
    first = scene.integer(0, t.dim() - 1)
    return f"{x}.diagonal({scene.integer(-1, 1)}, {first}, {(first + 1) % t.dim()})"


def unfolded(scene: Scene, x: str, t: torch.Tensor) -> str:
    dim = _some_dim(scene, t)
    return f"{x}.unfold({dim}, {scene.integer(1, t.shape[dim])}, {scene.integer(1, 3)})"


def strided(scene: Scene, x: str, t: torch.Tensor) -> str:
    """as_strided, within the storage; now and then outside."""
    available = t.untyped_storage().nbytes() // t.element_size()
    sizes = [scene.integer(1, 3) for _ in range(scene.integer(0, 3))]
    strides = [scene.integer(0 if scene.once_in(6) else 1, 5) for _ in sizes]
    reach = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if reach > available:
        if not scene.once_in(8):
            raise Unavailable
        return f"{x}.as_strided({sizes}, {strides}, 0)"
    return f"{x}.as_strided({sizes}, {strides}, {scene.integer(0, available - reach)})"


def parts_of_complex(scene: Scene, x: str, t: torch.Tensor) -> str:
    if t.dtype.is_complex:
        name = scene.choice(("view_as_real", "real", "imag", "conj", "H"))
        if name == "view_as_real":
            return f"torch.view_as_real({x})"
        return f"{x}.mH" if name == "H" and t.dim() >= 2 else f"{x}.conj()" if name in ("H", "conj") else f"{x}.{name}"
    if t.dtype in (torch.float32, torch.float64) and t.dim() and t.shape[-1] == 2:
        return f"torch.view_as_complex({x})"
    raise Unavailable


def reinterpreted(scene: Scene, x: str, t: torch.Tensor) -> str:
    """The same bytes as another dtype; not those of truth values, where bytes but 0 and 1 mean nothing."""
    if t.requires_grad or not is_exact(t) or t.dtype is torch.bool:
        raise Unavailable
    options = [torch.uint8, torch.int16, torch.int32, torch.int64]
    if not is_inexact(t):
        options = [d for d in options if d.itemsize <= t.element_size() or scene.once_in(2)]
    return f"{x}.view({scene.choice(options)})"


def same(scene: Scene, x: str, t: torch.Tensor) -> str:
    """The tensor itself, or an alias of it."""
    return scene.choice(
        (f"{x}.detach()", f"{x}.data", f"{x}[:]", f"{x}.view_as({x})", f"{x}.contiguous()", f"{x}.to({t.dtype})")
    )


VIEWS: dict[str, tuple[View, int]] = {
    "narrow": (narrow, 3),
    "select": (select, 3),
    "subscript": (subscript, 6),
    "transpose": (transposed, 4),
    "view": (resized, 4),
    "squeeze": (with_ones, 2),
    "expand": (expanded, 3),
    "diagonal": (diagonal, 2),
    "unfold": (unfolded, 2),
    "as_strided": (strided, 4),
    "complex": (parts_of_complex, 3),
    "view.dtype": (reinterpreted, 2),
    "alias": (same, 2),
}
_CHOICES = [name for name, (_, weight) in VIEWS.items() for _ in range(weight)]


def view_of(scene: Scene, x: str) -> tuple[str, str]:
    """An expression for some view of an expression, and the view's name.

    Raises:
        Unavailable: the view that was drawn does not fit.
    """
    name = scene.choice(_CHOICES)
    return VIEWS[name][0](scene, x, scene.value(x)), name


def place(scene: Scene, *conditions: Callable[[torch.Tensor], bool]) -> tuple[str, torch.Tensor]:
    """An expression that can be written to, and what it is: a tensor with a name, or a view of one.

    Raises:
        Unavailable: there is none.
    """
    x = scene.own_name(*conditions)
    for _ in range(scene.choice((0, 1, 0, 1, 2))):
        x, _ = view_of(scene, x)
    t = scene.value(x)
    if not all(c(t) for c in conditions):
        raise Unavailable
    return x, t


def one(scene: Scene) -> None:
    """A view of a tensor, or of a view without a name."""
    x, name = view_of(scene, scene.name())
    if scene.once_in(4):
        x, name = view_of(scene, x)
    scene.bind(FAMILY, name, x)


def several(scene: Scene) -> None:
    """chunk, split, unbind and their kin."""
    x = scene.name(lambda t: t.dim() > 0)
    t = scene[x]
    dim = _some_dim(scene, t)
    n = t.shape[dim]
    name = scene.choice(("chunk", "split", "unbind", "tensor_split", "split_with_sizes"))
    argument = {
        "chunk": f"{scene.integer(1, 3)}, ",
        "split": f"{scene.integer(1, n)}, ",
        "unbind": "",
        "tensor_split": f"{scene.integer(1, 3)}, ",
        "split_with_sizes": f"{[1, n - 1]}, ",
    }[name]
    expression = f"{x}.{name}({argument}{dim})"
    count = len(scene.value(expression))
    if count == 1:
        expression += "[0]"
    scene.bind("views", name, expression, targets=count)


FORMS = [Form(one, 24), Form(several, 4)]
