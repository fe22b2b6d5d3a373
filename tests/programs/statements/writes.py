"""Statements that write: in place, into views, with ``out=``, and what gives a tensor other memory or sizes."""

from __future__ import annotations

import math

import torch

from programs.facts import (
    are_apart,
    fits,
    is_exact,
    is_expanded,
    is_inexact,
    is_integral,
    is_number,
    is_plain,
    is_real,
    overlaps_itself,
    same_place,
    shares_storage,
)
from programs.forms import Form, broadcast_source
from programs.scene import Scene, Unavailable
from programs.statements.views import place

FAMILY = "write"


def guarded(scene: Scene) -> str:
    """What stands before a write: mostly nothing."""
    return "with torch.no_grad(): " if scene.once_in(8) else ""


def is_defined(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether an element-wise write of a function of ``source`` has one outcome, or eager refuses it for certain."""
    return are_apart(target, source) or same_place(target, source) or (is_plain(target) and is_plain(source))


def target(scene: Scene, pointwise: bool = True, *conditions: object) -> tuple[str, torch.Tensor]:
    """A place whose elements are not shared; for element-wise writes now and then one that eager refuses."""
    x, t = place(scene, *conditions)  # type: ignore[arg-type]
    if overlaps_itself(t) and not (pointwise and is_expanded(t) and scene.once_in(3)):
        raise Unavailable
    return x, t


def operand(scene: Scene, t: torch.Tensor, *conditions: object) -> str:
    """A number or a tensor to be written, or computed with, in place.

    Raises:
        Unavailable: there is none whose use is defined.
    """
    if scene.once_in(3):
        return scene.number(t.dtype)
    return broadcast_source(scene, t, lambda s: is_defined(t, s), *conditions)  # type: ignore[arg-type]


def arithmetic(scene: Scene) -> None:
    """In-place arithmetic with a number or a tensor."""
    x, t = target(scene)
    # What an integral target cannot take is refused because of the dtypes; what it takes must fit.
    y = operand(scene, t)
    name = scene.choice(("add_", "mul_", "sub_", "add_", "mul_"))
    alpha = ", alpha=2" if name != "mul_" and is_number(t) and scene.once_in(4) else ""
    if scene.once_in(4) and not alpha:
        # += on a name would give the name another tensor where eager does not write in place; on a view it may not.
        symbol = {"add_": "+=", "mul_": "*=", "sub_": "-="}[name]
        if x.endswith("]"):
            scene.do(FAMILY, f"setitem {symbol}", f"{guarded(scene)}{x} {symbol} {y}")
            return
    scene.do(FAMILY, name, f"{guarded(scene)}{x}.{name}({y}{alpha})")


def unary(scene: Scene) -> None:
    """In-place functions of one argument."""
    x, t = target(scene)
    options = ["neg_()", "abs_()", "square_()", "sign_()", "clamp_(-1, 2)", "clamp_(max=1)", "zero_()", "relu_()"]
    if is_exact(t):
        options += ["floor_()", "round_()", "trunc_()", "logical_not_()", "nan_to_num_()", "eq_(1)", "gt_(0)"]
    if is_inexact(t):
        options += ["sigmoid_()", "tanh_()", "sin_()", "exp_()", "div_(2)", "pow_(2)"]
    if is_integral(t):
        options += ["bitwise_not_()", "bitwise_xor_(1)", "bitwise_and_(3)", "remainder_(3)"]
    if t.dim() >= 2 and not overlaps_itself(t):  # eager does not see there that elements are shared
        options += ["tril_()", "triu_(1)"]
    call = scene.choice(options)
    scene.do(FAMILY, call.partition("(")[0], f"{guarded(scene)}{x}.{call}")


def filled(scene: Scene) -> None:
    """One number everywhere."""
    x, t = target(scene)
    number = scene.number(t.dtype)
    if x.endswith("]") and scene.once_in(2):
        scene.do(FAMILY, "setitem", f"{guarded(scene)}{x} = {number}")
    else:
        scene.do(FAMILY, "fill_", f"{guarded(scene)}{x}.fill_({number})")


def copied(scene: Scene) -> None:
    """The contents of another tensor, converted."""
    x, t = target(scene)
    y = broadcast_source(scene, t, lambda s: fits(s, t.dtype) and is_defined(t, s))
    if not t.numel() and scene[y].requires_grad:
        raise Unavailable  # eager gives the nothing that is written a history, also of whole numbers
    if t.numel() == 1 and shares_storage(t, scene[y]):
        raise Unavailable  # eager takes the element itself from ``x[None] = y`` and refuses it from ``copy_``
    # Eager fills with what has no dimensions, which gives integers a history (FillBackward), and copies on devices.
    gives_history = scene[y].requires_grad and not is_inexact(t)
    if x.endswith("]") and not gives_history and scene.once_in(2):
        scene.do(FAMILY, "setitem", f"{guarded(scene)}{x} = {y}")
    else:
        scene.do(FAMILY, "copy_", f"{guarded(scene)}{x}.copy_({y})")


def masked(scene: Scene) -> None:
    """masked_fill_, where a mask says so."""
    x, t = target(scene)
    mask = broadcast_source(scene, t, lambda s: s.dtype is torch.bool and are_apart(t, s))
    scene.do(FAMILY, "masked_fill_", f"{guarded(scene)}{x}.masked_fill_({mask}, {scene.number(t.dtype)})")


def several_operands(scene: Scene) -> None:
    """addcmul_, lerp_, and their kin."""
    x, t = target(scene, True, is_inexact)
    y = broadcast_source(scene, t, lambda s: s.dtype is t.dtype and is_defined(t, s))
    z = broadcast_source(scene, t, lambda s: s.dtype is t.dtype and is_defined(t, s))
    call = scene.choice((f"addcmul_({y}, {z})", f"addcmul_({y}, {z}, value=2)", f"lerp_({y}, 0.5)"))
    scene.do(FAMILY, call.partition("(")[0], f"{guarded(scene)}{x}.{call}")


def foreach(scene: Scene) -> None:
    """An operator on a list of tensors."""
    writable = [n for n in scene.tensors if scene.is_writable(scene[n]) and is_inexact(scene[n])]
    first = scene.choice(writable)
    second = scene.choice([n for n in writable if not shares_storage(scene[n], scene[first])])
    call = scene.choice(("add_", "mul_"))
    scene.do(FAMILY, f"_foreach_{call}", f"torch._foreach_{call}([{first}, {second}], {scene.number()})")


def out(scene: Scene) -> None:
    """An ``out=`` that is a tensor with a name or a view of one, of the right sizes or not."""
    x, t = target(scene, True)
    kind = scene.integer(0, 3)
    if kind == 0:
        y = scene.name(lambda s: are_apart(t, s) and is_real(s))
        dim = scene.dim(scene[y])
        call = scene.choice((f"torch.cumsum({y}, {dim}", f"torch.sum({y}, {dim}"))
    elif kind == 1:
        y = scene.name(lambda s: s.dim() == 2 and are_apart(t, s))
        z = scene.name(lambda s: s.dim() == 2 and are_apart(t, s) and s.shape[0] == scene[y].shape[1])
        call = f"torch.mm({y}, {z}"
    else:
        y = broadcast_source(scene, t, lambda s: is_defined(t, s))
        z = broadcast_source(scene, t, lambda s: is_defined(t, s) and (t.dtype is not torch.bool or is_exact(s)))
        name = scene.choice(("add", "mul", "sub"))
        call = f"torch.{name}({y}, {z}"
    if _grows(scene, x, t, f"{call})"):
        raise Unavailable
    name = call.removeprefix("torch.").partition("(")[0]
    scene.do("out=", name, f"{call}, out={x})")
    if scene.statements[-1].refused:
        # Eager may have resized it before it refused.
        scene.give_up(x)


def _grows(scene: Scene, x: str, t: torch.Tensor, source: str) -> bool:
    """Whether the result has other sizes than a view without a name, or does not fit what it is written to."""
    try:
        result = scene.value(source)
    except Unavailable:
        # A refusal is what is wanted then; eager may resize what it was to write to before.
        return x not in scene.tensors or not scene.is_alone(t)
    if not fits(result, t.dtype) or result.numel() > 64:
        return True
    # On the device a tensor that grows gets a storage of its own, so it must share none.
    return result.shape != t.shape and (overlaps_itself(t) or x not in scene.tensors or not scene.is_alone(t))


def metadata(scene: Scene) -> None:
    """In-place changes of sizes and strides."""
    x = scene.own_name()
    t = scene[x]
    call = scene.choice(
        (
            "t_()",
            f"transpose_({scene.dim(t)}, {scene.dim(t)})",
            f"unsqueeze_({scene.integer(-t.dim() - 1, t.dim())})",
            "squeeze_()",
            f"squeeze_({scene.dim(t)})",
            f"swapaxes_({scene.dim(t)}, {scene.dim(t)})",
        )
    )
    scene.do("metadata", call.partition("(")[0], f"{guarded(scene)}{x}.{call}")


def resized(scene: Scene) -> None:
    """``resize_`` within the storage, or beyond it, where what was not written before is filled.

    A storage that others share does not grow: on the device ``resize_`` gives the tensor a larger one of its own.
    """
    x = scene.own_name(lambda t: not overlaps_itself(t))
    sizes = scene.sizes(3)
    needed = (math.prod(sizes) + scene[x].storage_offset()) * scene[x].element_size()
    others = [t for n, t in scene.tensors.items() if n != x and shares_storage(t, scene[x])]
    if others and needed > scene[x].untyped_storage().nbytes():
        raise Unavailable
    scene.do("metadata", "resize_", f"{x}.resize_({sizes}).fill_({scene.number(scene[x].dtype)})")


def data_replaced(scene: Scene) -> None:
    """An assignment to ``.data``."""
    x = scene.own_name()
    y = scene.name(lambda t: t.dtype is scene[x].dtype and not scene.is_shared(t))
    source = scene.choice((y, f"{y}.data", f"{y} + 1", f"{y}.clone()", f"{x}.data * 2", f"{x}.data[:1]"))
    given = scene.value(source)
    if (given.is_conj(), given.is_neg()) != (scene[x].is_conj(), scene[x].is_neg()):
        # PyTorch takes that on the devices that it names itself, and on no other (has_compatible_shallow_copy_type in
        # c10/core/TensorImpl.h).
        raise Unavailable
    scene.do("storage", ".data =", f"{x}.data = {source}")


def data_written(scene: Scene) -> None:
    """A write to ``.data``, which autograd does not see."""
    x = scene.own_name(scene.is_writable)
    scene.do(
        "storage", ".data write", f"{x}.data.{scene.choice(('add_', 'mul_', 'fill_'))}({scene.number(scene[x].dtype)})"
    )


def set_to(scene: Scene) -> None:
    """``set_`` to another tensor, or to a stretch of another tensor's storage."""
    x = scene.own_name()
    y = scene.name(lambda t: t.dtype is scene[x].dtype and not scene.is_shared(t))
    if scene.once_in(2):
        scene.do("storage", "set_", f"{guarded(scene)}{x}.set_({y})")
        return
    n = scene[y].untyped_storage().nbytes() // scene[y].element_size()
    offset = scene.integer(0, max(n - 1, 0))
    rows = max((n - offset) // 2, 0)
    place = f"{y}.untyped_storage(), {offset}, [2, {rows}], [{rows}, 1]"
    scene.do("storage", "set_ storage", f"{guarded(scene)}{x}.set_({place})")


def detached(scene: Scene) -> None:
    """``detach_``, and a storage that is emptied by ``set_()``."""
    x = scene.own_name()
    scene.do("storage", "detach_", f"{x}.detach_()")


FORMS = [
    Form(arithmetic, 14),
    Form(unary, 6),
    Form(filled, 5),
    Form(copied, 8),
    Form(masked, 3),
    Form(several_operands, 2),
    Form(foreach, 1),
    Form(out, 5),
    Form(metadata, 3),
    Form(resized, 1),
    Form(data_replaced, 2),
    Form(data_written, 1),
    Form(set_to, 2),
    Form(detached, 1),
]
