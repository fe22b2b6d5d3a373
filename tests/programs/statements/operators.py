"""Statements that compute new tensors: element by element, by reduction, by matrix products, by rearranging."""

from __future__ import annotations

import torch

from programs.facts import (
    fills_its_storage,
    has_elements,
    is_distinct,
    is_exact,
    is_inexact,
    is_integral,
    is_number,
    is_real,
)
from programs.forms import Form, compatible
from programs.scene import Scene, Unavailable


def binary(scene: Scene) -> None:
    """Two operands of any dtypes, broadcast."""
    x = scene.name()
    y = compatible(scene, scene[x]) if not scene.once_in(3) else scene.number(scene[x].dtype)
    symbol = scene.choice(("+", "*", "-"))
    scene.bind("element-wise", symbol, f"{x} {symbol} {y}" if scene.once_in(2) else f"{y} {symbol} {x}")


def functions(scene: Scene) -> None:
    """Functions of two operands that have names."""
    x = scene.name(is_real)
    y = compatible(scene, scene[x], is_real)
    name = scene.choice(("maximum", "minimum", "fmax", "atan2", "hypot", "logical_and", "logical_xor", "bitwise_or"))
    if name.startswith("logical") and not (is_exact(scene[x]) and is_exact(scene[y])):
        raise Unavailable
    scene.bind("element-wise", name, f"torch.{name}({x}, {y})")


def compared(scene: Scene) -> None:
    """Comparisons, of numbers that were not rounded."""
    x = scene.name(is_exact)
    y = compatible(scene, scene[x], is_exact) if scene.once_in(2) else scene.number(scene[x].dtype)
    symbol = scene.choice((">", "==", "<=", "!=", "<"))
    scene.bind("element-wise", "compare", f"{x} {symbol} {y}")


def divided(scene: Scene) -> None:
    """Division, remainder and powers by numbers."""
    x = scene.name(is_real)
    options = [f"{x} / 2", f"{x} ** 2", f"{x} / 4.0", f"torch.pow({x}, 3)"]
    if is_exact(scene[x]):
        options += [f"{x} // 2", f"{x} % 3", f"torch.div({x}, 2, rounding_mode='floor')", f"torch.fmod({x}, 2)"]
    if is_integral(scene[x]) and is_number(scene[x]):
        options += [f"{x} << 1", f"{x} >> 1", f"{x} & 6", f"~{x}"]
    scene.bind("element-wise", "divide, power, bits", scene.choice(options))


def unary(scene: Scene) -> None:
    """Functions of one operand."""
    x = scene.name()
    names = ["neg", "abs", "square", "sgn", "conj_physical", "positive"]
    if is_inexact(scene[x]) or scene.once_in(4):
        names += ["sin", "cos", "exp", "sigmoid", "tanh", "angle"]
    if is_real(scene[x]):
        names += ["relu", "erf"]
        if is_exact(scene[x]):
            names += ["sign", "floor", "round", "isnan", "logical_not", "signbit", "isfinite"]
    name = scene.choice(names)
    scene.bind("element-wise", name, f"torch.{name}({x})")


def layers(scene: Scene) -> None:
    """Functions of neural networks."""
    x = scene.name(is_inexact, is_real, lambda t: t.dim() > 0)
    t = scene[x]
    name, arguments = scene.choice(
        (
            ("softmax", f"{scene.dim(t)}"),
            ("gelu", ""),
            ("silu", ""),
            ("leaky_relu", "0.5"),
            ("layer_norm", f"{list(t.shape[-1:])}"),
            ("pad", "(1, 2)"),
            ("pad", "(0, -1)"),
            ("normalize", "dim=-1"),
            ("hardtanh", "-1, 1"),
        )
    )
    scene.bind("layer", name, f"F.{name}({x}{', ' if arguments else ''}{arguments})")


def chosen(scene: Scene) -> None:
    """where."""
    mask = scene.name(lambda t: t.dtype is torch.bool)
    x = compatible(scene, scene[mask])
    y = compatible(scene, scene[x]) if scene.once_in(2) else scene.number(scene[x].dtype)
    scene.bind("element-wise", "where", f"torch.where({mask}, {x}, {y})")


def clamped(scene: Scene) -> None:
    """clamp, nan_to_num, addcmul, lerp."""
    x = scene.name(is_real)
    y = compatible(scene, scene[x], lambda t: t.dtype is scene[x].dtype)
    options = [
        f"{x}.clamp(-1, 2)",
        f"{x}.clamp(min={y})",
        f"torch.addcmul({x}, {y}, {y})",
        f"torch.lerp({x}, {y}, 0.5)",
    ]
    expression = scene.choice(options)
    scene.bind("element-wise", "clamp, addcmul, lerp", expression)


def reduced(scene: Scene) -> None:
    """Reductions over all dims, one, or several."""
    x = scene.name()
    t = scene[x]
    names = ["sum", "prod", "sum", "any", "all", "count_nonzero"] if is_exact(t) else ["sum"]
    if is_inexact(t):
        names += ["mean", "mean", "logsumexp", "norm", "var"]
    if is_real(t):
        names += ["amax", "amin", "max", "min"]
    name = scene.choice(names)
    kind = scene.integer(0, 4)
    if kind == 0 and name not in ("logsumexp",):
        scene.bind("reduction", name, f"{x}.{name}()")
        return
    dim = scene.dim(t)
    keep = ", keepdim=True" if scene.once_in(3) and name != "count_nonzero" else ""
    if name in ("max", "min"):
        scene.bind("reduction", name, f"{x}.{name}({dim}{keep})[0]")
    elif name == "norm":
        scene.bind("reduction", name, f"{x}.norm(2, {dim}{keep})")
    elif kind == 1 and name in ("sum", "mean", "amax", "amin", "logsumexp", "var") and t.dim() > 1:
        scene.bind("reduction", name, f"{x}.{name}([0, -1]{keep})")
    elif name == "sum" and scene.once_in(4):
        scene.bind("reduction", name, f"{x}.sum({dim}, dtype={scene.choice((torch.float64, torch.float32))})")
    else:
        scene.bind("reduction", name, f"{x}.{name}({dim}{keep})")


def ordered(scene: Scene) -> None:
    """Positions and order, of numbers that all differ."""
    x = scene.name(is_exact, is_real, lambda t: t.dim() > 0)
    dim = scene.dim(scene[x])
    options = [f"{x}.sort({dim}, stable=True)[0]", f"torch.unique({x})", f"{x}.cummax({dim})[0]"]
    if is_distinct(scene[x]):
        options += [f"{x}.argmax({dim})", f"{x}.argmin()", f"{x}.argsort({dim})", f"{x}.topk(1, {dim})[0]"]
    expression = scene.choice(options)
    scene.bind("reduction", "order", expression)


def scanned(scene: Scene) -> None:
    """cumsum, cumprod, diff."""
    x = scene.name(lambda t: t.dim() > 0)
    name = scene.choice(("cumsum", "cumsum", "cumprod", "diff"))
    argument = f"dim={scene.dim(scene[x])}"
    scene.bind("reduction", name, f"{x}.{name}({argument})")


def multiplied(scene: Scene) -> None:
    """Matrix products."""
    x = scene.name(is_number, lambda t: t.dim() in (1, 2, 3))
    n = scene[x].shape[-1]
    y = scene.name(
        lambda t: (
            t.dtype is scene[x].dtype and ((t.dim() > 1 and t.shape[-2] == n) or (t.dim() == 1 and t.shape[0] == n))
        )
    )
    options = [f"{x} @ {y}", f"torch.matmul({x}, {y})"]
    if scene[x].dim() == 2:
        options += [f"F.linear({x}, {x})", f"{x}.mm({y})", f"{x}.t().mm({x})"]
    if scene[x].dim() == 3:
        options += [f"torch.bmm({x}, {x}.mT)", f"torch.einsum('bij,bkj->ik', {x}, {x})"]
    if scene[x].dim() == 1:
        options += [f"torch.outer({x}, {x})", f"torch.dot({x}, {x})"]
    expression = scene.choice(options)
    scene.bind("matrix", expression.partition("(")[0].rpartition(".")[2] if "(" in expression else "@", expression)


def joined(scene: Scene) -> None:
    """cat and stack."""
    x = scene.name(lambda t: t.dim() > 0)
    t = scene[x]
    dim = scene.dim(t)
    if scene.once_in(2):
        y = scene.name(lambda s: s.shape == t.shape)
        scene.bind("rearrange", "stack", f"torch.stack([{x}, {y}], {dim})")
    else:
        y = scene.name(lambda s: s.dim() == t.dim() and (s.shape[1:] == t.shape[1:] or scene.once_in(9)))
        scene.bind("rearrange", "cat", f"torch.cat([{x}, {y}, {x}], {0 if scene.once_in(2) else dim})")


def rearranged(scene: Scene) -> None:
    """flip, roll, repeat, tril and their kin: copies in another order."""
    x = scene.name()
    t = scene[x]
    options = [f"{x}.repeat(2, {', '.join('1' for _ in t.shape) or '1'})", f"{x}.tile(2)"]
    if t.dim():
        dim = scene.dim(t)
        options += [
            f"{x}.flip({dim})",
            f"{x}.roll({scene.integer(-2, 2)}, {dim})",
            f"{x}.repeat_interleave(2, {dim})",
            f"torch.diag_embed({x})",
        ]
    if t.dim() >= 2:
        options += [f"{x}.tril()", f"{x}.triu(1)", f"torch.rot90({x})", f"{x}.trace()"]
    expression = scene.choice(options)
    name = expression.partition("(")[0].rpartition(".")[2]
    scene.bind("rearrange", name, expression)


def scattered(scene: Scene) -> None:
    """The functional writes: select_scatter and its kin, of tensors that fill their storage.

    Of others eager copies the whole storage (``clone_preserve_strides``); on the device the result is a tensor alone.
    """
    x = scene.name(lambda t: t.dim() > 0, has_elements, fills_its_storage)
    t = scene[x]
    dim = scene.integer(0, t.dim() - 1)
    y = scene.name(lambda s: s.dtype is t.dtype and s.shape == t.shape)
    options = [f"torch.select_scatter({x}, {y}.select({dim}, 0), {dim}, {t.shape[dim] - 1})"]
    options.append(f"torch.slice_scatter({x}, {y}.narrow({dim}, 0, 1), {dim}, {t.shape[dim] - 1})")
    if t.dim() == 2:
        options.append(f"torch.diagonal_scatter({x}, {y}.diagonal())")
    scene.bind("rearrange", "scatter", scene.choice(options))


def compound(scene: Scene) -> None:
    """Several operators whose results in between nobody holds."""
    x = scene.name(is_number)
    scene.bind(
        "element-wise", "compound", scene.choice((f"({x} + 1) * {x} - 2", f"(-{x}).abs() + {x}.flip(0).flip(0)"))
    )


FORMS = [
    Form(binary, 9),
    Form(functions, 2),
    Form(compared, 5),
    Form(divided, 3),
    Form(unary, 5),
    Form(layers, 2),
    Form(chosen, 2),
    Form(clamped, 2),
    Form(reduced, 8),
    Form(ordered, 2),
    Form(scanned, 2),
    Form(multiplied, 4),
    Form(joined, 3),
    Form(rearranged, 3),
    Form(scattered, 1),
    Form(compound, 2),
]
