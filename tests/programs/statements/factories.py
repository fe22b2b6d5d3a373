"""Statements that make tensors."""

from __future__ import annotations

import math

import torch

from programs.facts import fits, is_exact
from programs.forms import DTYPES, Form
from programs.scene import Scene

FAMILY = "factory"


def counted(scene: Scene) -> None:
    """Numbers that all differ, the most telling contents."""
    sizes = scene.sizes()
    dtype = scene.choice(DTYPES)
    numel = math.prod(sizes)
    start = scene.integer(-2, 2) if dtype.is_signed and dtype is not torch.bool else 0
    made = f"torch.arange({start}, {start + numel}, device=D)"
    if dtype is torch.bool:
        made = f"({made} % {scene.integer(2, 3)} == 0)"
    elif dtype is not torch.int64:
        made = f"{made}.to({dtype})"
        if dtype.is_floating_point and scene.once_in(2):
            made = f"({made} / 2)"
    scene.bind(FAMILY, "arange", made if len(sizes) == 1 else f"{made}.{scene.choice(('view', 'reshape'))}({sizes})")


def filled(scene: Scene) -> None:
    """One number everywhere."""
    dtype = scene.choice(DTYPES)
    sizes = scene.sizes()
    name = scene.choice(("zeros", "ones", "full", "empty"))
    rest = {"full": f", {scene.number(dtype)}", "empty": ""}.get(name, "")
    made = f"torch.{name}({sizes}{rest}, dtype={dtype}, device=D)"
    # Memory that nobody wrote has no contents that could be compared.
    scene.bind(FAMILY, name, f"{made}.fill_({scene.number(dtype)})" if name == "empty" else made)


def from_numbers(scene: Scene) -> None:
    """From a list, or a single number."""
    numbers = [scene.number() for _ in range(scene.integer(0, 4))]
    kind = scene.integer(0, 2)
    if kind == 0:
        scene.bind(FAMILY, "tensor", f"torch.tensor([{', '.join(numbers)}], device=D)")
    elif kind == 1:
        scene.bind(FAMILY, "tensor", f"torch.tensor({scene.number(scene.choice(DTYPES))}, device=D)")
    else:
        rows = [[scene.integer(-3, 9) for _ in range(3)] for _ in range(scene.integer(1, 3))]
        scene.bind(FAMILY, "tensor", f"torch.tensor({rows}, dtype={scene.choice(DTYPES[:9])}, device=D)")


def ranges(scene: Scene) -> None:
    """eye, linspace, arange with a step, tril_indices."""
    n = scene.integer(1, 4)
    made = scene.choice(
        (
            f"torch.eye({n}, {scene.integer(1, 4)}, dtype={scene.choice(DTYPES)}, device=D)",
            f"torch.linspace({-n}, {n}, {2 * n + 1}, device=D)",
            f"torch.arange(0, {n}, 0.5, device=D)",
            f"torch.arange({n}, device=D)",
            f"torch.tril_indices({n}, {n}, device=D)",
            f"torch.zeros({4 * n}, device=D).as_strided([2, {n}], [{n + 1}, 1], 1)",
            f"torch.empty_strided([{n + 1}, 2], [1, {n + 1}], device=D).fill_({scene.number()})",
            f"torch.ones({n}, 2, 1, 2, device=D).to(memory_format=torch.channels_last)",
        )
    )
    scene.bind(FAMILY, made.removeprefix("torch.").partition("(")[0], made)


def like(scene: Scene) -> None:
    """The ``*_like`` functions, which take dtype and layout from another tensor."""
    x = scene.name()
    name = scene.choice(("zeros_like", "ones_like", "full_like", "empty_like"))
    dtype = scene.choice(DTYPES) if scene.once_in(3) else None
    number = scene.number(dtype or scene[x].dtype)
    made = f"torch.{name}({x}{f', {number}' if name == 'full_like' else ''}{f', dtype={dtype}' if dtype else ''})"
    scene.bind(FAMILY, name, f"{made}.fill_({number})" if name == "empty_like" else made)


def new(scene: Scene) -> None:
    """The ``new_*`` methods."""
    x = scene.name()
    sizes, dtype = scene.sizes(), scene[x].dtype
    name = scene.choice(("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "new_empty_strided"))
    number = scene.number(dtype)
    made = {
        "new_full": f"{x}.new_full({sizes}, {number})",
        "new_empty": f"{x}.new_empty({sizes}).fill_({number})",
        "new_tensor": f"{x}.new_tensor([{number}, {number}])",
        "new_empty_strided": f"{x}.new_empty_strided([2, 3], [1, 2]).fill_({number})",
    }.get(name, f"{x}.{name}({sizes})")
    scene.bind(FAMILY, name, made)


def cast(scene: Scene) -> None:
    """Another dtype."""
    x = scene.name()
    dtype = scene.choice([d for d in DTYPES if fits(scene[x], d)])
    short = str(dtype).removeprefix("torch.").replace("complex64", "cfloat")
    methods = {"float32": "float", "int64": "long", "bool": "bool", "int32": "int", "float64": "double"}
    kind = scene.integer(0, 4)
    if kind == 0 and short in methods:
        scene.bind("dtype", methods[short], f"{x}.{methods[short]}()")
    elif kind == 1:
        other = scene.name(lambda t: fits(scene[x], t.dtype))
        scene.bind("dtype", "type_as", f"{x}.{scene.choice(('type_as', 'to'))}({other})")
    elif kind == 2:
        scene.bind("dtype", "to", f"{x}.to({dtype}, copy=True)")
    else:
        scene.bind("dtype", "to", f"{x}.to({dtype})")


def promoted(scene: Scene) -> None:
    """What two operands of different dtypes become."""
    x = scene.name()
    y = scene.name(lambda t: t.dtype is not scene[x].dtype and is_exact(t))
    scene.bind_number("dtype", "result_type", f"torch.result_type({x}, {y})")


FORMS = [
    Form(counted, 14),
    Form(filled, 5),
    Form(from_numbers, 3),
    Form(ranges, 3),
    Form(like, 4),
    Form(new, 3),
    Form(cast, 7),
    Form(promoted, 1),
]
