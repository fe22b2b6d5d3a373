"""A schedule as a straight line of Python: local variables only, one call per node."""

from __future__ import annotations

import keyword
import math
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from torchport.backend.data import BackendData
from torchport.backends.interpreter.layout import concrete, resolved, result_maker
from torchport.backends.interpreter.schedule import Schedule
from torchport.backends.interpreter.steps import AsTensor, Form, Step, flat
from torchport.backends.interpreter.values import Values
from torchport.ir.call import Number, Operand
from torchport.ir.shape import Shape

CHUNK_STATEMENTS = 1000
"""Statements per function. Python's compiler takes more than linear time for very long functions."""

Chunk = Callable[[list[Any], list[Any]], None]


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled graph.

    Attributes:
        source: the text of the functions.
        chunks: run in order; each takes the slots (arguments, then values that cross from one chunk to another) and the
            list of results.
        final: the second phase, which writes into donated arguments; empty where none are.
        slots: how many slots follow the arguments'.
        schedule: what it was made from.
    """

    source: str
    chunks: tuple[Chunk, ...]
    final: tuple[Chunk, ...]
    slots: int
    schedule: Schedule
    result_count: int

    def run(
        self, arguments: list[BackendData], handles: list[Any], keep: Callable[[list[BackendData]], None]
    ) -> list[BackendData]:
        """The results for these arguments; donated ones lose their handle.

        Args:
            arguments: the data, one per parameter.
            handles: their handles; the list is used up.
            keep: is given the results as soon as donated arguments have lost theirs, before Ctrl-C can take effect.
        """
        results: list[Any] = [None] * self.result_count
        slots = handles
        slots += [None] * self.slots
        with (
            torch._C.DisableTorchFunction(),
            torch._C._DisableTorchDispatch(),
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._DisableAutocast(),
        ):
            for chunk in self.chunks:
                chunk(slots, results)
            for result, parameter in self.schedule.returned.items():
                results[result] = arguments[parameter]
            if self.final:
                with _interrupts_deferred():
                    for chunk in self.final:
                        chunk(slots, results)
                    for parameter in self.schedule.donated.values():
                        arguments[parameter].handle = None
                    keep(results)
        return results


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Lets Ctrl-C wait: between two writes into parameters it would leave an update half done."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts the main thread only
        return
    caught: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        # None: the handler was not set from Python, and cannot be put back from it.
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)
    if caught:
        signal.raise_signal(signal.SIGINT)


@dataclass(slots=True)
class _Statement:
    text: str
    reads: tuple[int, ...]
    makes: tuple[int, ...] = ()


@dataclass(slots=True)
class _Names:
    """What the functions' free variables stand for."""

    by_name: dict[str, Any] = field(default_factory=dict)
    by_id: dict[tuple[int, str], str] = field(default_factory=dict)

    def function(self, function: Callable[..., Any], name: str) -> str:
        """The name of a function; the one that is asked for, unless another function has it."""
        known = self.by_id.get((id(function), name))
        if known is not None:
            return known
        free = re.sub(r"\W", "_", name)
        if keyword.iskeyword(free) or re.fullmatch(r"[a-z]\d*|_", free):
            free += "_op"
        base, count = free, 1
        while free in self.by_name:
            count += 1
            free = f"{base}_{count}"
        self.by_name[free] = function
        self.by_id[id(function), name] = free
        return free

    def constant(self, value: Any) -> str:
        """A literal where Python has one of the value, else the name of a constant."""
        if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        if type(value) is tuple and all(type(x) in (bool, int) for x in value):
            return repr(value)
        known = self.by_id.get((id(value), ""))
        if known is None:
            known = self.by_id[id(value), ""] = f"c{len(self.by_name)}"
            self.by_name[known] = value
        return known


class _Emitter:
    def __init__(self, values: Values, plan: Schedule, result: Callable[[torch.Tensor, Shape], BackendData]) -> None:
        self.values = values
        self.plan = plan
        self.names = _Names()
        self.make_result = self.names.function(result, "result")
        self.wanted: dict[int, list[int]] = {}
        for r, v in enumerate(values.results):
            if r not in plan.returned:
                self.wanted.setdefault(v, []).append(r)
        self.sources: list[str] = []

    def name(self, value: int) -> str:
        """The local variable of a value or a number."""
        if value >= self.values.count:
            return f"n{value - self.values.count}"
        parameter = self.values.parameters.get(value)
        return f"v{value}" if parameter is None else f"p{parameter}"

    def statements(self, order: tuple[int, ...]) -> list[_Statement]:
        """A call per node, and after it a statement for each result that it makes."""
        found = []
        if order is self.plan.order:
            found += [self.wrap(v, r) for v in self.values.parameters for r in self.wanted.get(v, ())]
        for node in order:
            found.append(self.call(node))
            for v in self.values.outputs_of(node):
                found += [self.wrap(v, r) for r in self.wanted.get(v, ())]
        return found

    def wrap(self, value: int, result: int) -> _Statement:
        """The statement that puts a value among the results."""
        shape = self.values.shapes[value]
        if shape is None:
            raise ValueError(f"result {result} is no tensor: {self.values.graph.results[result]!r} returns none there")
        step = self.values.steps[self.values.node_of[value]]
        text = self.name(value)
        may_be_lazy = shape.dtype.is_complex or (step is not None and any(step.aliases))
        if may_be_lazy and result not in self.plan.donated:
            text = f"{self.names.function(resolved, 'resolved')}({text})"
        if result in self.plan.cloned:
            text = f"{self.names.function(torch.clone, 'clone')}({text})"
        text = f"r[{result}] = {self.make_result}({text}, {self.names.constant(concrete(shape))})"
        return _Statement(text, (value,))

    def call(self, node: int) -> _Statement:
        """The statement that runs a node."""
        values = self.values
        step = values.steps[node]
        assert step is not None
        if node in self.plan.in_place:
            assert step.in_place is not None
            function = self.names.function(step.in_place, step.name.rstrip("_") + "_")
        else:
            function = self.names.function(step.function, step.name)
        reads = values.operands[node]
        numbers: list[int] = []
        arguments = [self.template(a, node, numbers) for a in step.args]
        arguments += [f"{k}={self.template(v, node, numbers)}" for k, v in step.kwargs]
        text = f"{function}({', '.join(arguments)})"
        outputs = values.outputs_of(node)
        used = [v for v in outputs if v in values.uses or v in self.wanted]
        return _Statement(self.assign(step, text, outputs, used), (*reads, *numbers), tuple(used))

    def assign(self, step: Step, text: str, outputs: range, used: list[int]) -> str:
        """An assignment of a call's outputs, which keeps none that nobody reads."""
        if not used:
            return text
        if step.form is Form.ONE:
            return f"{self.name(used[0])} = {text}"
        if step.form is Form.NESTED:
            text = f"{self.names.function(flat, 'flat')}({text})"
        if len(used) == 1:
            return f"{self.name(used[0])} = {text}[{used[0] - outputs.start}]"
        names = [self.name(v) if v in used else "_" for v in outputs]
        return f"{', '.join(names)} = {text}" + ("; del _" if "_" in names else "")

    def template(self, template: Any, node: int, numbers: list[int]) -> str:
        """The text of an argument; the numbers in it are added to ``numbers``."""
        kind = type(template)
        if kind is Operand:
            return self.name(self.values.operands[node][template.index])
        if kind is Number:
            numbers.append(self.values.numbers_of[node] + template.index)
            return self.name(numbers[-1])
        if kind is AsTensor:
            make = self.names.function(torch.scalar_tensor, "scalar_tensor")
            inner = self.template(template.number, node, numbers)
            return f"{make}({inner}, dtype={self.names.constant(template.dtype)})"
        if kind is tuple and any(type(x) in (Operand, Number, AsTensor) for x in template):
            return f"[{', '.join(self.template(x, node, numbers) for x in template)}]"
        return self.names.constant(template)

    def chunks(self, phases: list[list[_Statement]]) -> tuple[list[list[str]], int]:
        """The functions' bodies, by phase, and how many slots they need beyond the arguments'."""
        pieces = [
            (phase, body[i : i + CHUNK_STATEMENTS])
            for phase, body in enumerate(phases)
            for i in range(0, len(body), CHUNK_STATEMENTS)
        ]
        last_chunk: dict[int, int] = {}
        for c, (_, piece) in enumerate(pieces):
            for statement in piece:
                last_chunk.update(dict.fromkeys(statement.reads, c))
        slot = dict(self.values.parameters)
        tensors = len(slot)
        slot.update({self.values.count + i: tensors + i for i in range(len(self.values.graph.numbers))})
        arguments = len(slot)
        given = set(slot)
        bodies: list[list[str]] = [[] for _ in phases]
        for c, (phase, piece) in enumerate(pieces):
            lines: list[str] = []
            last = {v: i for i, s in enumerate(piece) for v in (*s.makes, *s.reads)}
            made = {v for s in piece for v in s.makes}
            for v in dict.fromkeys(v for s in piece for v in s.reads if v not in made):
                lines.append(f"{self.name(v)} = s[{slot[v]}]")
                if last_chunk[v] == c and v not in given:
                    lines.append(f"s[{slot[v]}] = None")
            ends: dict[int, list[int]] = {}
            for v, i in last.items():
                if v not in given and last_chunk.get(v, c) == c and i < len(piece) - 1:
                    ends.setdefault(i, []).append(v)
            for i, statement in enumerate(piece):
                lines.append(statement.text)
                if i in ends:
                    lines.append(f"del {', '.join(map(self.name, ends[i]))}")
            for v in (v for s in piece for v in s.makes if last_chunk.get(v, c) > c):
                slot[v] = len(slot)
                lines.append(f"s[{slot[v]}] = {self.name(v)}")
            bodies[phase].append("\n".join(f"        {line}" for line in lines))
        return bodies, len(slot) - arguments

    def compile(self, name: str, body: str) -> Chunk:
        """The function of a body, with what it names bound as free variables."""
        used = set(re.findall(r"[A-Za-z_]\w*", body))
        free = [n for n in self.names.by_name if n in used]
        source = f"def bind({', '.join(free)}):\n    def {name}(s, r):\n{body}\n    return {name}\n"
        constants = "".join(f"# {n} = {self.names.by_name[n]!r}\n" for n in free if re.fullmatch(r"c\d+", n))
        self.sources.append(constants + source)
        namespace: dict[str, Any] = {}
        exec(compile(source, f"<interpreter {name}>", "exec"), namespace)  # noqa: S102 - the text is made above, of ops
        chunk: Chunk = namespace["bind"](*[self.names.by_name[n] for n in free])
        return chunk


def build_program(values: Values, plan: Schedule, device: Any) -> Program:
    """The program of a schedule.

    Args:
        values: the graph's values.
        plan: its schedule.
        device: the concrete device that the results' data names.
    """
    emitter = _Emitter(values, plan, result_maker(device))
    phases = [emitter.statements(plan.order), emitter.statements(plan.final)]
    bodies, slots = emitter.chunks(phases)
    chunks = [
        tuple(emitter.compile(f"{phase}_{i}", body) for i, body in enumerate(found))
        for phase, found in zip(("compute", "update"), bodies, strict=True)
    ]
    header = [f"# r[{r}] = argument {p}\n" for r, p in plan.returned.items()]
    source = "".join(header) + "\n".join(emitter.sources)
    return Program(source, chunks[0], chunks[1], slots, plan, len(values.results))
