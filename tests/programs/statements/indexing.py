"""Statements with index tensors and masks: reads, whose sizes may depend on values, and writes."""

from __future__ import annotations

import torch

from programs.facts import are_apart, fits, has_elements
from programs.forms import Form
from programs.scene import Scene, Unavailable
from programs.statements.writes import guarded, target

FAMILY = "index"


def _positions(scene: Scene, n: int, distinct: bool, most: int = 4) -> list[int]:
    """Positions within a dim of size ``n``, negative ones too."""
    if not distinct:
        return [scene.integer(-n, n - 1) for _ in range(scene.integer(0, most))]
    left = list(range(n))
    found = []
    for _ in range(scene.integer(0, min(most, n))):
        position = left.pop(scene.integer(0, len(left) - 1))
        found.append(position - n if scene.once_in(4) else position)
    return found


def _index_source(scene: Scene, positions: list[int]) -> str:
    """The positions as a list, a tensor on the device, or one on the CPU."""
    kind = scene.integer(0, 5)
    if kind == 0 and positions:
        return str(positions)
    return f"torch.tensor({positions}, dtype=torch.int64{', device=D' if kind < 5 else ''})"


def _mask(scene: Scene, t: torch.Tensor) -> str:
    """A mask of the tensor's leading sizes."""
    return scene.name(lambda m: m.dtype is torch.bool and 0 < m.dim() <= t.dim() and m.shape == t.shape[: m.dim()])


def _subscript(scene: Scene, t: torch.Tensor, distinct: bool) -> str:
    """An advanced index: positions in one dim or two, next to slices, or a mask.

    Raises:
        Unavailable: the tensor has no elements or no dims.
    """
    if t.dim() == 0 or t.numel() == 0:
        raise Unavailable
    kind = scene.integer(0, 4)
    if kind == 4:
        return _mask(scene, t)
    dim = scene.integer(0, t.dim() - 1)
    parts = [":" if not scene.once_in(4) else "1:" for _ in range(dim)]
    positions = _positions(scene, t.shape[dim], distinct)
    parts.append(_index_source(scene, positions))
    if kind == 3 and dim + 1 < t.dim() and positions:
        # A pair of indices: distinct because the first one is.
        second = [scene.integer(0, t.shape[dim + 1] - 1) for _ in positions]
        if scene.once_in(2):
            parts.append(str(second))
        else:
            parts.extend((":", str(second)) if dim + 2 < t.dim() and max(second) < t.shape[dim + 2] else (str(second),))
    if scene.once_in(5):
        parts.append("...")
    return ", ".join(parts)


def read(scene: Scene) -> None:
    """An advanced index."""
    x = scene.name(has_elements)
    index = _subscript(scene, scene[x], distinct=False)
    scene.bind(FAMILY, "getitem mask" if index in scene.tensors else "getitem", f"{x}[{index}]")


def computed_mask(scene: Scene) -> None:
    """A mask that is computed on the spot."""
    x = scene.name(has_elements, lambda t: fits(t, torch.bool), lambda t: not t.dtype.is_complex)
    scene.bind(FAMILY, "getitem mask", f"{x}[{x} > {scene.integer(-1, 2)}]")


def written(scene: Scene) -> None:
    """An assignment to an advanced index, of a number or a tensor that can be broadcast."""
    x, t = target(scene, False, has_elements)
    index = _subscript(scene, t, distinct=True)
    place = scene.value(f"{x}[{index}]")
    if scene.once_in(2):
        y = scene.number(t.dtype)
    else:
        y = scene.name(
            lambda s: s.dtype is t.dtype and are_apart(s, t) and (s.shape == place.shape[place.dim() - s.dim() :])
        )
    symbol = scene.choice(("=", "=", "+=", "*=")) if t.dtype is not torch.bool else "="
    scene.do(FAMILY, f"setitem {symbol}", f"{guarded(scene)}{x}[{index}] {symbol} {y}")


def put(scene: Scene) -> None:
    """index_put_, with and without accumulating: with, positions may repeat."""
    x, t = target(scene, False, has_elements, lambda t: t.dim() > 0)
    accumulate = scene.once_in(2)
    if accumulate and t.dtype is torch.bool:
        raise Unavailable
    positions = _positions(scene, t.shape[0], distinct=not accumulate)
    index = f"torch.tensor({positions}, dtype=torch.int64, device=D)"
    y = scene.name(lambda s: s.dtype is t.dtype and are_apart(s, t) and s.shape == t.shape[t.dim() - s.dim() :])
    if scene[y].dim() == t.dim():
        y = f"{y}[0]"
    name = scene.choice(("index_put_", "index_put"))
    call = f"{x}.{name}(({index},), {y}, accumulate={accumulate})"
    if name == "index_put_":
        scene.do(FAMILY, "index_put_", f"{guarded(scene)}{call}")
    else:
        scene.bind(FAMILY, "index_put", call)


def along_dim(scene: Scene) -> None:
    """index_select, index_add_, index_fill_, index_copy_."""
    name = scene.choice(("index_select", "index_add_", "index_fill_", "index_copy_", "index_add"))
    if name == "index_select":
        x = scene.name(lambda t: t.dim() > 0, has_elements)
        dim = scene.integer(0, scene[x].dim() - 1)
        positions = _positions(scene, scene[x].shape[dim], distinct=False)
        positions = [p % scene[x].shape[dim] for p in positions]
        scene.bind(FAMILY, name, f"{x}.index_select({dim}, torch.tensor({positions}, dtype=torch.int64, device=D))")
        return
    x, t = target(scene, False, lambda t: t.dim() > 0, has_elements, lambda t: t.dtype is not torch.bool)
    dim = scene.integer(0, t.dim() - 1)
    count = scene.integer(1, t.shape[dim])
    repeats = name.startswith("index_add")
    positions = (
        [scene.integer(0, t.shape[dim] - 1) for _ in range(count)]
        if repeats
        else [p % t.shape[dim] for p in range(1, count + 1)]
    )
    index = f"torch.tensor({positions}, dtype=torch.int64, device=D)"
    if name == "index_fill_":
        scene.do(FAMILY, name, f"{guarded(scene)}{x}.index_fill_({dim}, {index}, {scene.number(t.dtype)})")
        return
    y = scene.name(lambda s: s.dtype is t.dtype and are_apart(s, t) and s.shape == t.shape)
    call = f"{x}.{name}({dim}, {index}, {y}.narrow({dim}, 0, {count}))"
    if name == "index_add":
        scene.bind(FAMILY, name, call)
    else:
        scene.do(FAMILY, name, f"{guarded(scene)}{call}")


def gathered(scene: Scene) -> None:
    """gather, scatter_, take_along_dim."""
    name = scene.choice(("gather", "scatter_", "scatter_add_", "take_along_dim", "take"))
    if name == "take":
        x = scene.name(has_elements)
        positions = _positions(scene, scene[x].numel(), distinct=False)
        scene.bind(FAMILY, name, f"torch.take({x}, torch.tensor({positions}, dtype=torch.int64, device=D))")
        return
    x, t = target(scene, False, lambda t: t.dim() > 0, has_elements)
    dim = scene.integer(0, t.dim() - 1)
    index = f"torch.ones({list(t.shape)}, dtype=torch.int64, device=D).cumsum({dim}).sub_(1)"
    if scene.once_in(2):
        index += f".flip({dim})"
    if name in ("gather", "take_along_dim"):
        scene.bind(
            FAMILY,
            name,
            f"torch.{name}({x}, {', '.join((str(dim), index) if name == 'gather' else (index, str(dim)))})",
        )
        return
    y = scene.name(lambda s: s.dtype is t.dtype and are_apart(s, t) and s.shape == t.shape)
    scene.do(FAMILY, name, f"{guarded(scene)}{x}.{name}({dim}, {index}, {y})")


def selected(scene: Scene) -> None:
    """masked_select, nonzero, masked_scatter_: sizes that depend on values."""
    kind = scene.integer(0, 3)
    if kind == 0:
        x = scene.name(lambda t: fits(t, torch.bool))
        scene.bind(FAMILY, "nonzero", f"{x}.nonzero()")
        return
    if kind == 1:
        x = scene.name(lambda t: fits(t, torch.bool), lambda t: t.dim() == 1)
        scene.bind(FAMILY, "nonzero", f"torch.nonzero({x}, as_tuple=True)[0]")
        return
    if kind == 2:
        x = scene.name()
        mask = scene.name(lambda m: m.dtype is torch.bool and m.shape == scene[x].shape)
        scene.bind(FAMILY, "masked_select", f"torch.masked_select({x}, {mask})")
        return
    x, t = target(scene, False)
    mask = scene.name(lambda m: m.dtype is torch.bool and m.shape == t.shape and are_apart(m, t))
    y = scene.name(lambda s: s.dtype is t.dtype and s.numel() >= t.numel() and are_apart(s, t))
    scene.do(FAMILY, "masked_scatter_", f"{guarded(scene)}{x}.masked_scatter_({mask}, {y})")


FORMS = [
    Form(read, 5),
    Form(computed_mask, 2),
    Form(written, 6),
    Form(put, 2),
    Form(along_dim, 3),
    Form(gathered, 2),
    Form(selected, 3),
]
