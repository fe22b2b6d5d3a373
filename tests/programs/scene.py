"""The state of a program that is being written: what lives, on the CPU, after the statements so far.

Each statement is run on the CPU as soon as it is drawn, so that the next one can be drawn to fit: names of tensors that
live, dims that they have, indices that are within. That is what makes nine of ten statements valid.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st

from lazy.cases.oracle import nothing
from programs.execution import SEED, namespace
from programs.facts import overlaps_itself
from programs.program import Program, Statement

T = TypeVar("T")
Condition = Callable[[torch.Tensor], bool]

LARGEST_NUMEL = 64
MOST_TENSORS = 10


class Unavailable(Exception):  # noqa: N818 - a signal, not an error
    """Nothing that lives fits what is to be written next."""


@cache
def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


class Scene:
    """What the next statement is drawn from, and the statements so far.

    Attributes:
        tensors: the live tensors on the device, oldest first.
        hosts: the live tensors that a program has copied to the CPU.
        numbers: the names of Python numbers.
        statements: what was written.
        unversioned: storages of gradients. Whether autograd adds to one in place is its own affair.
        is_thread: whether another program runs at the same time, so that there is one generator for two.
    """

    def __init__(self, draw: Callable[[Any], Any], prefix: str = "t", outer: Scene | None = None) -> None:
        self._draw = draw
        self._prefix = prefix
        self._count = 0
        self._errors = 0
        self._names: dict[str, Any] = dict(outer._names) if outer else {**namespace(), "D": "cpu", "sync": nothing}
        self.tensors: dict[str, torch.Tensor] = dict(outer.tensors) if outer else {}
        self.hosts: dict[str, torch.Tensor] = {}
        self.numbers: list[str] = []
        self.statements: list[Statement] = []
        self.unversioned: set[int] = set()
        self.is_thread = outer is not None
        self._shared = {t.untyped_storage()._cdata for t in self.tensors.values()}
        self._inherited = set(self.tensors)
        if not outer:
            torch.manual_seed(SEED)

    # -- drawing ------------------------------------------------------------------------------------------------

    def integer(self, low: int, high: int) -> int:
        """A number within the bounds, both included."""
        return int(self._draw(_integers(low, high)))

    def choice(self, options: Sequence[T]) -> T:
        """One of them; the first one is the simplest.

        Raises:
            Unavailable: there is none.
        """
        if not options:
            raise Unavailable
        return options[self.integer(0, len(options) - 1)]

    def once_in(self, n: int) -> bool:
        """True once in ``n`` times."""
        return self.integer(0, n - 1) == n - 1

    def name(self, *conditions: Condition) -> str:
        """The name of a live tensor that meets the conditions, the youngest ones first.

        Raises:
            Unavailable: there is none.
        """
        return self.choice([n for n in reversed(self.tensors) if _meets(self.tensors[n], conditions)])

    def own_name(self, *conditions: Condition) -> str:
        """The same, but not one that another thread reads."""
        return self.name(lambda t: not self.is_shared(t), *conditions)

    def dim(self, t: torch.Tensor) -> int:
        """A dim of the tensor, counted from either end; now and then one that it does not have."""
        if self.once_in(40):
            return t.dim() + self.integer(0, 1)
        if t.dim() == 0:
            return self.integer(-1, 0)
        dim = self.integer(0, t.dim() - 1)
        return dim - t.dim() if self.once_in(3) else dim

    def sizes(self, most_dims: int = 4) -> list[int]:
        """Sizes of a small tensor; a size of 0 is rare."""
        sizes = [self.integer(1, 4) for _ in range(self.choice((2, 1, 3, 2, 1, 0, 4)[: most_dims + 3]))]
        if sizes and self.once_in(12):
            sizes[self.integer(0, len(sizes) - 1)] = 0
        return sizes

    def number(self, dtype: torch.dtype = torch.float32) -> str:
        """A Python number that fits the dtype, mostly of its kind."""
        kind = 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1
        if self.once_in(8):
            kind = self.integer(0, 2)
        if kind == 0:
            return self.choice(("True", "False"))
        if kind == 1:
            return str(self.integer(-3, 4) if dtype.is_signed else self.integer(0, 4))
        if kind == 2:
            return str(self.integer(-4, 4) / 2)
        return f"({self.integer(-2, 2)}+{self.integer(0, 2)}j)"

    # -- what is there ------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def value(self, source: str) -> Any:
        """What an expression without side effects is on the CPU.

        Raises:
            Unavailable: eager refuses it.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return eval(source, self._names)
        except Exception as error:
            raise Unavailable from error

    def is_shared(self, t: torch.Tensor) -> bool:
        """Whether another thread reads the tensor's storage."""
        return t.untyped_storage()._cdata in self._shared

    def is_writable(self, t: torch.Tensor) -> bool:
        """Whether a write to it has one outcome."""
        return not self.is_shared(t) and not overlaps_itself(t)

    # -- writing ------------------------------------------------------------------------------------------------

    def bind(self, family: str, name: str, expression: str, targets: int = 1) -> None:
        """Gives the tensors that an expression makes names: the statement ``t3 = expression``."""
        fresh = [f"{self._prefix}{self._count + i}" for i in range(targets)]
        left = ", ".join(fresh)
        error = self._execute(f"{left} = {expression}")
        if error:
            self._record(family, name, f"{left} = {expression}", refused=True)
            return
        made = {n: self._names[n] for n in fresh}
        if any(t.numel() > LARGEST_NUMEL or t.dim() > 6 for t in made.values()):
            for n in fresh:
                del self._names[n]
            raise Unavailable
        self._count += targets
        self.tensors.update(made)
        self._record(family, name, f"{left} = {expression}")

    def bind_host(self, family: str, name: str, expression: str) -> None:
        """The same for a tensor that is on the CPU on every device."""
        fresh = f"h_{self._prefix}{self._count}"
        error = self._execute(f"{fresh} = {expression}")
        self._record(family, name, f"{fresh} = {expression}", refused=error)
        if not error:
            self._count += 1
            self.hosts[fresh] = self._names[fresh]

    def bind_number(self, family: str, name: str, expression: str) -> None:
        """The same for what is no tensor and will be compared as it is."""
        fresh = f"n_{self._prefix}{self._count}"
        error = self._execute(f"{fresh} = {expression}")
        self._record(family, name, f"{fresh} = {expression}", refused=error)
        if not error:
            self._count += 1
            self.numbers.append(fresh)

    def do(self, family: str, name: str, source: str) -> None:
        """A statement that gives nothing a name."""
        self._record(family, name, source, refused=self._execute(source))

    def forget(self, name: str) -> None:
        """The statement that lets go of a tensor."""
        self.do("lifetime", "del", f"del {name}")
        del self.tensors[name]

    def is_alone(self, t: torch.Tensor) -> bool:
        """Whether no other live tensor shares the tensor's storage."""
        return sum(other.untyped_storage()._cdata == t.untyped_storage()._cdata for other in self.tensors.values()) < 2

    def give_up(self, name: str) -> None:
        """Stops comparing a tensor: what a refused statement left of it is nobody's business."""
        self.tensors.pop(name, None)

    def can_forget(self, name: str) -> bool:
        """Whether the name is this program's own."""
        return name not in self._inherited

    def _execute(self, source: str) -> bool:
        """Runs a line on the CPU; returns whether eager refused it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(source, self._names)
        except Exception:  # noqa: BLE001 - eager's own error, whatever it is
            return True
        return False

    def _record(self, family: str, name: str, source: str, refused: bool = False) -> None:
        error = ""
        if refused:
            error = f"e_{self._prefix}{self._errors}"
            self._errors += 1
            # Eager may count a write before it refuses it.
            named = [t for n, t in self.tensors.items() if re.search(rf"\b{n}\b", source)]
            self.unversioned |= {t.untyped_storage()._cdata for t in named}
        self.statements.append(Statement(family, name, source, error))

    def program(self, threads: tuple[Program, ...] = ()) -> Program:
        """What was written, with everything that is alive to be compared."""
        results = [n for n in self.tensors if n not in self._inherited]
        grads = [n for n in results if self._has_grad(self.tensors[n])]
        versioned = [n for n in results if self.tensors[n].untyped_storage()._cdata not in self.unversioned]
        results += [f"{n}.grad" for n in grads]
        results += [f"{n}._version" for n in versioned]
        results += [f"{n}.to(D)" for n in self.hosts]
        return Program(tuple(self.statements), tuple(results + self.numbers), threads)

    @staticmethod
    def _has_grad(t: torch.Tensor) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return t.grad is not None


def _meets(t: torch.Tensor, conditions: Sequence[Condition]) -> bool:
    """Whether a tensor meets the conditions. PyTorch lets some views be looked at no more; they meet none."""
    try:
        return all(c(t) for c in conditions)
    except RuntimeError:
        return False
