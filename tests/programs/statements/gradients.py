"""Statements of autograd."""

from __future__ import annotations

import torch

from programs.facts import is_inexact
from programs.forms import Form
from programs.scene import Scene, Unavailable

FAMILY = "autograd"


def _has_history(t: torch.Tensor) -> bool:
    return t.requires_grad


def required(scene: Scene) -> None:
    """A leaf that wants a gradient; some are views, some already have one."""
    x = scene.own_name(is_inexact) if not scene.once_in(10) else scene.own_name()
    scene.do(FAMILY, "requires_grad_", f"{x}.requires_grad_({'False' if scene.once_in(10) else ''})")


def leaf(scene: Scene) -> None:
    """A new leaf with the contents of something that lives."""
    x = scene.name(is_inexact)
    scene.bind(FAMILY, "leaf", f"{x}.detach().clone().requires_grad_()")


def used(scene: Scene) -> None:
    """A function of what wants a gradient: the kinds whose formulas save operands or results."""
    x = scene.name(_has_history)
    call = scene.choice(("* {x}", "* 2", "+ 1", "** 2"))
    if scene.once_in(2):
        scene.bind(FAMILY, "used", f"{x}.{scene.choice(('exp', 'sigmoid', 'sin', 'abs', 'clone', 'square'))}()")
        return
    scene.bind(FAMILY, "used", f"{x} {call.format(x=x)}")


def backward(scene: Scene) -> None:
    """A backward pass from a scalar of something."""
    x = scene.name(_has_history) if not scene.once_in(12) else scene.name()
    t = scene[x]
    if scene.is_thread and _reaches_shared(scene, t):
        raise Unavailable
    scalar = f"torch.view_as_real({x}.resolve_conj()).sum()" if t.dtype.is_complex else f"({x} * {x}).sum()"
    keep = "retain_graph=True" if scene.once_in(3) else ""
    kind = scene.integer(0, 4)
    if kind == 0:
        scene.do(FAMILY, "backward", f"{x}.backward(torch.ones_like({x}){', ' if keep else ''}{keep})")
    elif kind == 1:
        scene.do(FAMILY, "backward", f"{x}.sum().backward({keep})")
    else:
        scene.do(FAMILY, "backward", f"{scalar}.backward({keep})")


def _reaches_shared(scene: Scene, t: torch.Tensor) -> bool:
    """Whether a backward pass could write to the ``grad`` of a tensor that another thread has too."""
    return any(scene.is_shared(s) and s.requires_grad for s in scene.tensors.values())


def differentiated(scene: Scene) -> None:
    """torch.autograd.grad."""
    x = scene.name(_has_history, lambda t: not t.dtype.is_complex)
    y = scene.name(_has_history)
    scene.bind(
        FAMILY,
        "grad",
        f"torch.autograd.grad(({x} ** 2).sum(), {y}, retain_graph=True)[0].clone()",
    )


def gradient_named(scene: Scene) -> None:
    """A gradient that is held while more is accumulated, or that is taken away."""
    x = scene.own_name(lambda t: t.is_leaf and t.grad is not None)
    kind = scene.integer(0, 3)
    if kind == 0:
        scene.do(FAMILY, "grad = None", f"{x}.grad = None")
    elif kind == 1:
        scene.do(FAMILY, "grad write", f"{x}.grad.{scene.choice(('zero_', 'neg_'))}()")
    elif kind == 2:
        scene.bind(FAMILY, "grad", f"{x}.grad")
        scene.unversioned.add(scene[x].grad.untyped_storage()._cdata)  # type: ignore[union-attr]
    else:
        scene.do(FAMILY, "step", f"with torch.no_grad(): {x}.sub_({x}.grad, alpha=0.5)")


def retained(scene: Scene) -> None:
    """retain_grad of something in between."""
    x = scene.own_name(_has_history)
    scene.do(FAMILY, "retain_grad", f"{x}.retain_grad()")


def without(scene: Scene) -> None:
    """A view or a result without history."""
    x = scene.name(_has_history)
    scene.bind(FAMILY, "detach", scene.choice((f"{x}.detach()", f"{x}.data", f"{x}.detach() * 2")))


def hooked(scene: Scene) -> None:
    """A hook that changes the gradient.

    Not of a view of a leaf: PyTorch crashes where the leaf was written and came to want a gradient after the view was
    made, as it takes the view's old ``grad_fn``, which is null.
    """
    x = scene.own_name(lambda t: _has_history(t) and not (t._base is not None and t._base.is_leaf))
    scene.do(FAMILY, "register_hook", f"{x}.register_hook(lambda g: g * 2)")


FORMS = [
    Form(required, 4),
    Form(leaf, 4),
    Form(used, 5),
    Form(backward, 6),
    Form(differentiated, 1),
    Form(gradient_named, 3),
    Form(retained, 1),
    Form(without, 2),
    Form(hooked, 1),
]
