"""Views of a storage as chains of functional operations, for reading and for writing.

A tensor on the device is sizes, strides and an offset on a storage, and the storage's contents are one value of the
graph. Reading a tensor whose layout is not the storage's own needs the operations that lead from the contents to the
view; writing to it needs their inverses. Both are found from the numbers alone, whatever sequence of view operators the
program used, so they hold for any of them. A plan is made once per layout.

The method: bring the contents into the order of memory (a permute), refine the sizes so that every stride of the view
is the stride of some dimension (a reshape), cut each dimension (slices and selects, whose positions are numbers and
so cost no compile when they move), merge, permute, and broadcast. A view that does not divide so (overlapping windows,
a diagonal) is gathered from the flat contents by ``as_strided``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from torchport.ir.call import Call, number, operand
from torchport.ir.inference import infer
from torchport.ir.node import Value
from torchport.ir.shape import Shape, contiguous_strides

aten = torch.ops.aten
Layout = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]
"""Sizes, strides and offset in elements of the dtype, and the dtype."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a plan, its inverse, and the shapes on both sides."""

    call: Call
    numbers: tuple[int, ...]
    inverse: Call
    inverse_numbers: tuple[int, ...]
    needs_base: bool


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """How to read a view of a storage's contents, and how to write to it."""

    steps: tuple[Step, ...]
    shape: Shape

    def read(self, add: Any, contents: Value) -> Value:
        """The view's value; ``add(call, operands, numbers)`` appends a node and returns its value."""
        for step in self.steps:
            contents = add(step.call, (contents,), step.numbers)
        return contents

    def write(self, add: Any, contents: Value, value: Value) -> Value:
        """The contents after ``value`` was written through the view."""
        bases = [contents]
        last_needed = max((i for i, s in enumerate(self.steps) if s.needs_base), default=0)
        for step in self.steps[:last_needed]:
            bases.append(add(step.call, (bases[-1],), step.numbers))
        for i in range(len(self.steps) - 1, -1, -1):
            step = self.steps[i]
            operands = (bases[i], value) if step.needs_base else (value,)
            value = add(step.inverse, operands, step.inverse_numbers)
        return value

    @property
    def overwrites(self) -> bool:
        """Whether a write replaces all of the contents, so that the old ones are not read."""
        return not any(s.needs_base for s in self.steps)


_PLANS: dict[tuple[Shape, Layout], ViewPlan] = {}
_PLANS_LIMIT = 1 << 16


def plan_view(base: Shape, layout: Layout) -> ViewPlan:
    """The plan for a layout on contents of shape ``base``."""
    key = (base, layout)
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _PLANS_LIMIT:
            _PLANS.clear()
        plan = _PLANS[key] = _Planner(base).plan(layout)
    return plan


class _Planner:
    """Builds the steps of one plan."""

    def __init__(self, base: Shape) -> None:
        self.shape = base
        self.steps: list[Step] = []

    def plan(self, layout: Layout) -> ViewPlan:
        sizes, strides, offset, dtype = layout
        if 0 in sizes:
            return self._empty(layout)
        self._to_memory_order()
        if dtype is not self.shape.dtype:
            self._reinterpret(dtype)
        broadcast = [n for n, s in zip(sizes, strides, strict=True) if n > 1 and s == 0]
        kept = [i for i, (n, s) in enumerate(zip(sizes, strides, strict=True)) if n > 1 and s != 0]
        kept.sort(key=lambda i: (-strides[i], i))
        dims = [(sizes[i], strides[i]) for i in kept]
        if not self._cut(dims, offset) and not self._cut_with_steps(dims, offset):
            dense_sizes = tuple(sizes[i] for i in kept)
            self._gather(dense_sizes, tuple(strides[i] for i in kept), offset)
        rank = sorted(range(len(kept)), key=lambda j: kept[j])
        self._permute(tuple(rank))
        self._reshape(tuple(n if s != 0 else 1 for n, s in zip(sizes, strides, strict=True)))
        if broadcast:
            self._expand(sizes)
        return ViewPlan(tuple(self.steps), Shape(dtype, sizes, strides))

    def _empty(self, layout: Layout) -> ViewPlan:
        # A view without elements: any slice of the contents of that many (no) elements will do, and a write is void.
        sizes, strides, _, dtype = layout
        self._reshape((self.shape.numel,))
        if dtype is not self.shape.dtype:
            self._reinterpret(dtype)
        self._slice(0, 0, 0, 1)
        self._reshape(sizes)
        return ViewPlan(tuple(self.steps), Shape(dtype, sizes, strides))

    # -- single steps -------------------------------------------------------------------------------------------

    def _add(
        self,
        op: Any,
        args: tuple[Any, ...],
        numbers: tuple[int, ...],
        inverse_op: Any,
        inverse_args: tuple[Any, ...],
        inverse_numbers: tuple[int, ...] = (),
        needs_base: bool = False,
    ) -> None:
        before = self.shape
        full = (operand(0), *args)
        outputs = infer(op, full, {}, (before,), list(numbers))
        after = outputs[0]
        assert after is not None
        # The inverse sees contiguous operands: what the view's write brings has whatever strides it has.
        source = Shape(after.dtype, after.sizes)
        if needs_base:
            inverse_inputs: tuple[Shape, ...] = (before, source)
            inverse_full = (operand(0), operand(1), *inverse_args)
        else:
            inverse_inputs = (source,)
            inverse_full = (operand(0), *inverse_args)
        restored = Shape(before.dtype, before.sizes)
        self.steps.append(
            Step(
                Call(op, full, (), (before,), (after,)),
                numbers,
                Call(inverse_op, inverse_full, (), inverse_inputs, (restored,)),
                inverse_numbers,
                needs_base,
            )
        )
        self.shape = after

    def _permute(self, dims: tuple[int, ...]) -> None:
        if dims != tuple(range(len(dims))):
            inverse = tuple(sorted(range(len(dims)), key=lambda i: dims[i]))
            self._add(aten.permute.default, (dims,), (), aten.permute.default, (inverse,))

    def _reshape(self, sizes: tuple[int, ...]) -> None:
        before = self.shape
        if sizes != before.sizes:
            # Always valid on values, which have no memory; strides are row-major from here on.
            shape = Shape(before.dtype, before.sizes)
            after = Shape(before.dtype, sizes)
            self.steps.append(
                Step(
                    Call(aten.view.default, (operand(0), sizes), (), (shape,), (after,)),
                    (),
                    Call(aten.view.default, (operand(0), before.sizes), (), (after,), (shape,)),
                    (),
                    False,
                )
            )
            self.shape = after

    def _slice(self, dim: int, start: int, stop: int, step: int) -> None:
        if (start, stop, step) != (0, self.shape.sizes[dim], 1):
            args = (dim, number(0, int), number(1, int), step)
            at = (start, stop)
            self._add(aten.slice.Tensor, args, at, aten.slice_scatter.default, args, at, needs_base=True)

    def _select(self, dim: int, index: int) -> None:
        if self.shape.sizes[dim] == 1:
            self._reshape(self.shape.sizes[:dim] + self.shape.sizes[dim + 1 :])
        else:
            args = (dim, number(0, int))
            self._add(aten.select.int, args, (index,), aten.select_scatter.default, args, (index,), needs_base=True)

    def _expand(self, sizes: tuple[int, ...]) -> None:
        before = self.shape
        dims = [i for i, (n, m) in enumerate(zip(before.sizes, sizes, strict=True)) if n != m]
        # Writing to a broadcast view is what eager refuses; the one operator that it lets through (index_put_, with a
        # warning) leaves one cell that all copies share: the first copy stands for it.
        after = Shape(before.dtype, sizes, tuple(0 if i in dims else s for i, s in enumerate(before.strides)))
        inverse = Call(
            aten.as_strided.default,
            (
                operand(0),
                before.sizes,
                tuple(0 if i in dims else s for i, s in enumerate(contiguous_strides(sizes))),
                0,
            ),
            (),
            (Shape(before.dtype, sizes),),
            (Shape(before.dtype, before.sizes),),
        )
        self.steps.append(
            Step(Call(aten.expand.default, (operand(0), sizes), (), (before,), (after,)), (), inverse, (), False)
        )
        self.shape = after

    def _gather(self, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
        self._reshape((self.shape.numel,))
        self._add(
            aten.as_strided.default,
            (sizes, strides, offset),
            (),
            aten.as_strided_scatter.default,
            (sizes, strides, offset),
            needs_base=True,
        )

    # -- the method ---------------------------------------------------------------------------------------------

    def _to_memory_order(self) -> None:
        strides, sizes = self.shape.strides, self.shape.sizes
        order = sorted(range(len(sizes)), key=lambda i: (-strides[i], sizes[i] == 1, i))
        moved = [i for i in order if sizes[i] > 1]
        if moved != sorted(moved):
            self._permute(tuple(order))
        else:
            self.shape = Shape(self.shape.dtype, sizes)

    def _reinterpret(self, dtype: torch.dtype) -> None:
        before = self.shape.dtype
        if self.shape.numel * before.itemsize % dtype.itemsize:
            whole = self.shape.numel * before.itemsize // dtype.itemsize * dtype.itemsize // before.itemsize
            self._reshape((self.shape.numel,))
            self._slice(0, 0, whole, 1)
        self._reshape((self.shape.numel,))
        self._add(aten.view.dtype, (dtype,), (), aten.view.dtype, (before,))

    def _cut(self, dims: list[tuple[int, int]], offset: int) -> bool:
        """Slices of a reshape; ``dims`` are (size, stride) by descending stride. False when it does not divide."""
        numel = self.shape.numel
        bounds = _boundaries(numel, self.shape.sizes, dims)
        if bounds is None:
            return False
        refined = [a // b for a, b in pairwise(bounds)]
        stride_at = {b: j for j, b in enumerate(bounds[1:])}
        rest, starts = offset, []
        for b in bounds[1:]:
            starts.append(rest // b)
            rest %= b
        cuts: dict[int, tuple[int, int]] = {}  # refined dimension → start, length
        owner: dict[int, int] = {}  # refined dimension → view dimension
        for d, (size, stride) in enumerate(dims):
            j, left = stride_at[stride], size
            while True:
                if j < 0 or j in owner:
                    return False
                take = min(left, refined[j])
                if left > refined[j] and (left % refined[j] or starts[j]):
                    return False
                if starts[j] + take > refined[j]:
                    return False
                cuts[j], owner[j] = (starts[j], take), d
                left = -(-left // refined[j]) if left > refined[j] else 1
                j -= 1
                if left == 1:
                    break
        if any(starts[j] >= refined[j] for j in range(len(refined))):
            return False
        self._reshape(tuple(refined))
        for j in range(len(refined) - 1, -1, -1):
            if j in cuts:
                start, length = cuts[j]
                self._slice(j, start, start + length, 1)
            else:
                self._select(j, starts[j])
        self._reshape(tuple(size for size, _ in dims))
        return True

    def _cut_with_steps(self, dims: list[tuple[int, int]], offset: int) -> bool:
        """At most one dimension of the view in each of the contents', with any step: ``a[1::2]`` of an odd size."""
        own = [s for n, s in zip(self.shape.sizes, contiguous_strides(self.shape.sizes), strict=True) if n > 1]
        sizes = [n for n in self.shape.sizes if n > 1]
        cuts: list[tuple[int, int, int]] = []
        todo = list(dims)
        for i, s in enumerate(own):
            start, offset = offset // s, offset % s
            here = [d for d in todo if d[1] >= s and (i == 0 or d[1] < own[i - 1])]
            todo = [d for d in todo if d not in here]
            if len(here) > 1 or (here and here[0][1] % s):
                return False
            length, step = (here[0][0], here[0][1] // s) if here else (1, 1)
            if start + (length - 1) * step >= sizes[i]:
                return False
            cuts.append((start, start + (length - 1) * step + 1, step) if here else (start, start + 1, 1))
        if todo or offset:
            return False
        self._reshape(tuple(sizes))
        for i in range(len(sizes)):
            self._slice(i, *cuts[i])
        self._reshape(tuple(size for size, _ in dims))
        return True


def _boundaries(numel: int, sizes: tuple[int, ...], dims: list[tuple[int, int]]) -> list[int] | None:
    """Strides of a refined reshape, from ``numel`` down to 1, each dividing the one before; None if there is none."""
    required = sorted({1, numel, *(s for _, s in dims)}, reverse=True)
    if any(a % b for a, b in pairwise(required)):
        return None
    optional = {c for c in contiguous_strides(sizes) if c > 0} | {n * s for n, s in dims}
    bounds = required
    for extra in sorted(optional - set(required), reverse=True):
        if extra < numel:
            trial = sorted([*bounds, extra], reverse=True)
            if not any(a % b for a, b in pairwise(trial)):
                bounds = trial
    return bounds
