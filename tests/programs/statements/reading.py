"""Statements that meet the host: barriers, copies, values that Python reads, and tensors that cease to live."""

from __future__ import annotations

from programs.facts import fits, has_elements, is_exact, is_real
from programs.forms import Form, broadcast_source
from programs.scene import MOST_TENSORS, Scene, Unavailable
from programs.statements.writes import guarded, target


def barrier(scene: Scene) -> None:
    """A barrier; on the CPU nothing."""
    scene.do("barrier", "sync", "sync()")


def to_host(scene: Scene) -> None:
    """A copy on the CPU."""
    x = scene.name()
    scene.bind_host("host", "cpu", f"{x}.{scene.choice(('cpu()', 'to(' + repr('cpu') + ')'))}.clone()")


def from_host(scene: Scene) -> None:
    """A copy of a CPU tensor: a new tensor, into one, or, where it is a scalar, as an operand."""
    h = scene.choice(list(scene.hosts))
    t = scene.hosts[h]
    kind = scene.integer(0, 2)
    if kind == 0:
        scene.bind("host", "to device", f"{h}.clone().to(D)")
    elif kind == 1 and t.dim() == 0:
        x = scene.name()
        scene.bind("host", "scalar operand", f"{x} + {h}")
    else:
        x, _ = target(scene, False, lambda s: s.shape == t.shape, lambda s: fits(t, s.dtype))
        scene.do("host", "copy_ from host", f"{guarded(scene)}{x}.copy_({h})")


def into_host(scene: Scene) -> None:
    """A device tensor copied into a part of a CPU tensor."""
    h = scene.choice([n for n, t in scene.hosts.items() if t.dim() and t.shape[0] and not t.requires_grad])
    t = scene.hosts[h][0]
    y = broadcast_source(scene, t, lambda s: fits(s, t.dtype) and not s.requires_grad)
    scene.do("host", "copy_ to host", f"{h}[0].copy_({y})")


def number(scene: Scene) -> None:
    """Values as Python numbers."""
    x = scene.name(has_elements)
    t = scene[x]
    options = [f"{x}.tolist()", f"{x}.sum().item()"]
    if is_exact(t):
        options += [f"bool({x}.any())", f"torch.equal({x}, {x} + 0)", f"{x}.count_nonzero().item()"]
    if t.numel() == 1:
        options += [f"{x}.item()", f"{x}.item()"]
        if is_exact(t) and is_real(t):
            options += [f"int({x})", f"float({x})", f"bool({x})"]
    expression = scene.choice(options)
    # A float out of what was rounded differs in its last bits: it is read, and compared as a tensor.
    if not is_exact(t) or not is_exact(scene.value(f"torch.as_tensor({expression})")):
        expression = f"torch.as_tensor({expression}).to(D)"
        scene.bind("read", "item", expression)
        return
    scene.bind_number("read", "item", expression)


def decided(scene: Scene) -> None:
    """Control flow that depends on a value."""
    x = scene.name(is_exact, is_real, has_elements)
    condition = scene.choice((f"{x}.sum() > 1", f"{x}.any()", f"{x}.max().item() > 2", f"{x}.flatten()[0] == 0"))
    place, t = target(scene, False)
    kind = scene.integer(0, 2)
    if kind == 0:
        scene.do("control", "if", f"if {condition}: {place}.add_({scene.number(t.dtype)})")
    elif kind == 1:
        scene.bind("control", "if else", f"{place} + 1 if {condition} else {place} * 2")
    else:
        scene.do(
            "control", "for", f"for _ in range(int({x}.count_nonzero()) % 4): {place}.mul_({scene.number(t.dtype)})"
        )


def looped(scene: Scene) -> None:
    """A loop that writes to the parts of a tensor."""
    x, _ = target(scene, False, lambda t: 0 < t.dim() and 0 < t.shape[0] <= 4)
    parts = scene.choice(("unbind(0)", "chunk(2)", "split(1)", "unbind(-1)"))
    body = scene.choice(("part.add_(i)", "part += i", "part.copy_(part + 1)", "part.mul_(2); sync()"))
    scene.do("control", "loop over parts", f"for i, part in enumerate({x}.{parts}): {body}")


def copied(scene: Scene) -> None:
    """Clones and deep copies; two at once keep what they share."""
    x = scene.name()
    kind = scene.integer(0, 4)
    if kind == 0:
        scene.bind("copy", "deepcopy", f"copy.deepcopy({x})")
    elif kind == 1:
        scene.bind("copy", "deepcopy", f"copy.deepcopy([{x}, {scene.name()}])", targets=2)
    elif kind == 2:
        scene.bind("copy", "clone", f"{x}.clone(memory_format=torch.contiguous_format)")
    elif kind == 3 and scene[x].dim() == 4:
        scene.bind("copy", "channels_last", f"{x}.contiguous(memory_format=torch.channels_last)")
    else:
        scene.bind("copy", "clone", f"{x}.clone()")


def forgotten(scene: Scene) -> None:
    """A tensor ceases to live: what was the memory of two is now that of one."""
    names = [n for n in scene.tensors if scene.can_forget(n)]
    if len(names) < 2:
        raise Unavailable
    scene.forget(scene.choice(names))


def crowded(scene: Scene) -> bool:
    """Whether so many tensors live that one must go."""
    return sum(scene.can_forget(n) for n in scene.tensors) > MOST_TENSORS


FORMS = [
    Form(barrier, 9),
    Form(to_host, 3),
    Form(from_host, 3),
    Form(into_host, 1),
    Form(number, 4),
    Form(decided, 3),
    Form(looped, 3),
    Form(copied, 4),
    Form(forgotten, 5),
]
