"""Statements that draw random numbers."""

from __future__ import annotations

from programs.facts import is_inexact, is_real
from programs.forms import FLOATS, Form
from programs.scene import Scene, Unavailable
from programs.statements.writes import guarded, target

FAMILY = "random"


def drawn(scene: Scene) -> None:
    """New random tensors."""
    sizes = scene.sizes(3)
    dtype = scene.choice(FLOATS[:2])
    made = scene.choice(
        (
            f"torch.rand({sizes}, dtype={dtype}, device=D)",
            f"torch.randn({sizes}, device=D)",
            f"torch.randint(-3, 5, {sizes}, device=D)",
            f"torch.randint(0, 4, {sizes}, dtype=torch.uint8, device=D)",
            f"torch.randperm({scene.integer(0, 6)}, device=D)",
            f"torch.normal(0.0, 1.0, {sizes}, device=D)",
            f"torch.bernoulli(torch.full({sizes}, 0.5, device=D))",
        )
    )
    scene.bind(FAMILY, made.removeprefix("torch.").partition("(")[0], made)


def like(scene: Scene) -> None:
    """rand_like and its kin, dropout."""
    x = scene.name(is_inexact, is_real)
    name = scene.choice(("rand_like", "randn_like", "dropout", "bernoulli"))
    if name == "bernoulli":
        if scene[x].isnan().any():
            raise Unavailable  # refused, when the value is known
        scene.bind(FAMILY, name, f"torch.bernoulli({x}.detach().sigmoid().round())")
    else:
        scene.bind(FAMILY, name, f"F.dropout({x}, 0.5)" if name == "dropout" else f"torch.{name}({x})")


def in_place(scene: Scene) -> None:
    """Random numbers into a tensor or a view."""
    x, _ = target(scene, False, is_inexact, is_real)
    call = scene.choice(
        ("uniform_()", "normal_()", "uniform_(-1, 1)", "bernoulli_(0.5)", "random_(0, 5)", "exponential_()")
    )
    scene.do(FAMILY, call.partition("(")[0], f"{guarded(scene)}{x}.{call}")


def with_generator(scene: Scene) -> None:
    """From a generator of the program's own."""
    x, _ = target(scene, False, is_inexact, is_real)
    seed = scene.integer(0, 9)
    scene.do(FAMILY, "generator=", f"{guarded(scene)}{x}.uniform_(generator=torch.Generator().manual_seed({seed}))")


def seeded(scene: Scene) -> None:
    """A new seed for the device."""
    scene.do(FAMILY, "manual_seed", f"torch.manual_seed({scene.integer(0, 9)})")


FORMS = [
    Form(drawn, 4, in_threads=False),
    Form(like, 2, in_threads=False),
    Form(in_place, 3, in_threads=False),
    Form(with_generator, 1),
    Form(seeded, 1, in_threads=False),
]
