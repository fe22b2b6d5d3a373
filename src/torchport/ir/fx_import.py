"""``torch.fx`` to graphs. What becomes of what is told in :mod:`torchport.ir.fx`."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from torchport.ir.call import DEVICE_DATA, SCALAR, Call, number, operand
from torchport.ir.fx_export import RESHAPE, SCALAR_TENSOR
from torchport.ir.graph import Graph
from torchport.ir.location import Location, TextLocation
from torchport.ir.node import Node, Value
from torchport.ir.shape import Shape
from torchport.ir.size_expression import SizeExpression, expression_text

_STATIC = (type(None), bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format, torch.device)
# A backend supplies its own device; random numbers come from the graph's generator.
_TORCH_FOLDER = str(Path(torch.__file__).parent)
_REMEDY = "\nExport the module with static shapes, and functionalize it (ExportedProgram.run_decompositions())."
_DROPPED = ("device", "pin_memory", "generator")


def from_fx(module: fx.GraphModule) -> Graph:
    """The graph of a module that calls functional operators only, as ``torch.export`` and ``make_fx`` make them.

    Every node must have ``meta["val"]``: real, fake or meta tensors. Placeholders of tensors become parameters; a
    placeholder of a number becomes one number input for each call that takes it. Devices are dropped.

    Raises:
        ValueError: nodes that are not of that kind; all of them are listed.
    """
    return _FromFx(module).graph()


def import_fx(module: fx.GraphModule, names: dict[str, str]) -> tuple[Graph, dict[fx.Node, Node]]:
    """The same of a module with symbolic sizes, and the node that each call of an operator became.

    Sizes get the names of their symbols; an integer that follows from sizes is a number of the call that takes it, a
    :class:`~torchport.ir.size_expression.SizeExpression`.

    Args:
        module: as for :func:`from_fx`; it may compute integers from sizes.
        names: torch's name of a symbol → ours.

    Raises:
        ValueError: as :func:`from_fx`.
    """
    importer = _FromFx(module, names)
    return importer.graph(), importer.made


class _ProblemError(Exception):
    """Why a node cannot be taken over."""


class _NumberInput:
    def __init__(self, value: bool | int | float | complex) -> None:
        self.value = value
        self.type = int if isinstance(value, SizeExpression) else type(value)


def _hint(size: Any) -> int:
    if isinstance(size, torch.SymInt):
        hint = size.node.hint
        if hint is None:
            raise _ProblemError(f"the size {size} is not known before it runs")
        return int(hint)
    return int(size)


def _shape(val: torch.Tensor, symbolic: tuple[bool | str, ...] | None) -> Shape:
    if val.layout is not torch.strided:
        raise _ProblemError(f"a tensor of layout {val.layout} has no strides; make it a dense one")
    sizes = tuple(map(_hint, val.shape))
    if symbolic is None:
        symbolic = tuple(isinstance(n, torch.SymInt) for n in val.shape)
    return Shape(val.dtype, sizes, tuple(map(_hint, val.stride())), symbolic)


def _location(node: fx.Node) -> Location:
    text = node.meta.get("location")
    if text is not None:
        return TextLocation(text)
    frames = re.findall(r'File "(.+)", line (\d+)', node.meta.get("stack_trace") or "")
    # The innermost line of the user's: torch's own modules are between it and the operator.
    own = [f for f in frames if not f[0].startswith(_TORCH_FOLDER)] or frames
    return TextLocation(f"{own[-1][0]}:{own[-1][1]}") if own else None


class _FromFx:
    def __init__(self, module: fx.GraphModule, names: dict[str, str] | None = None) -> None:
        self._fx = module.graph
        self._names = names
        self._derived: dict[str, str] = {}
        self.made: dict[fx.Node, Node] = {}
        self._nodes: list[Node] = []
        self._results: list[Value] = []
        # What an fx node stands for: a Value, a _NumberInput, None, or tuples of these.
        self._values: dict[fx.Node, Any] = {}

    def graph(self) -> Graph:
        problems: list[str] = []
        failed: set[fx.Node] = set()
        count = 0
        for node in self._fx.nodes:
            count += 1
            if failed.intersection(node.all_input_nodes):
                failed.add(node)  # a consequence of what is listed already
                continue
            try:
                self._values[node] = self._take(node)
            except _ProblemError as problem:
                failed.add(node)
                where = _location(node)
                problems.append(f"{node.format_node() or node.name}{f' at {where}' if where else ''}: {problem}")
        if problems:
            raise ValueError(
                ("from_fx: " if self._names is None else "")
                + "\n  ".join([f"{len(problems)} of {count} nodes cannot be taken over:", *problems])
                + (_REMEDY if self._names is None else "")
            )
        return Graph(self._nodes, self._results)

    def _take(self, node: fx.Node) -> Any:
        if node.op == "placeholder" and not isinstance(node.meta.get("val"), torch.SymInt):
            return self._placeholder(node)
        if node.op == "output":
            return self._output(node)
        if self._names is not None and isinstance(node.meta.get("val"), torch.SymInt):
            return _NumberInput(self._expression(node.meta["val"]))
        if node.op != "call_function":
            raise _ProblemError(f"{node.op} is no call of an operator; lift what it reads to an input")
        if node.target is operator.getitem:
            whole, index = node.args
            return self._values[whole][index]  # type: ignore[index]
        if not isinstance(node.target, OpOverload):
            raise _ProblemError("the target is no operator overload")
        if node.target._schema.is_mutable:
            raise _ProblemError("the operator writes to its input")
        return self._call(node, node.target)

    def _placeholder(self, node: fx.Node) -> Any:
        val = node.meta.get("val")
        if isinstance(val, bool | int | float | complex):
            return _NumberInput(val)
        if not isinstance(val, torch.Tensor):
            raise _ProblemError(f'meta["val"] is {val!r}, neither a tensor nor a number')
        shapes: list[Shape | None] = []
        self._outputs(val, shapes, node.meta.get("symbolic"))
        made = Node(Call(DEVICE_DATA, outputs=tuple(shapes)), location=_location(node))
        self._nodes.append(made)
        return made.value()

    def _output(self, node: fx.Node) -> None:
        def flatten(x: Any) -> None:
            if isinstance(x, list | tuple):
                for y in x:
                    flatten(y)
            elif isinstance(x, Value):
                self._results.append(x)
            else:
                raise _ProblemError("an output is no tensor; return tensors only")

        flatten(fx.map_arg(node.args[0], lambda n: self._values[n]))

    def _call(self, node: fx.Node, op: OpOverload) -> Any:
        if "val" not in node.meta and op._schema.returns:
            raise _ProblemError('there is no meta["val"]; propagate fake tensors through the module')
        operands: list[Value] = []
        numbers: list[Any] = []

        def convert(x: Any) -> Any:
            if isinstance(x, fx.Node):
                return convert_value(self._values[x], x)
            if isinstance(x, list | tuple):
                return tuple(map(convert, x))
            if type(x) not in _STATIC:
                raise _ProblemError(f"the argument {x!r} is no static value")
            return x

        def convert_value(x: Any, source: fx.Node) -> Any:
            if isinstance(x, Value):
                operands.append(x)
                return operand(len(operands) - 1)
            if isinstance(x, _NumberInput):
                numbers.append(x.value)
                return number(len(numbers) - 1, x.type)
            if isinstance(x, tuple):
                return tuple(convert_value(y, source) for y in x)
            raise _ProblemError(f"the argument {source.name} is no tensor, and known only when it runs")

        args = tuple(map(convert, node.args))
        kwargs = tuple((k, convert(v)) for k, v in sorted(node.kwargs.items()) if k not in _DROPPED)
        shapes: list[Shape | None] = []
        # An operator without results has no output, one whose single result is no tensor has one.
        grouped = self._outputs(node.meta.get("val"), shapes, node.meta.get("symbolic")) if op._schema.returns else None
        inputs = tuple(v.shape for v in operands)
        if op is SCALAR_TENSOR and [k for k, _ in kwargs] == ["dtype"] and numbers:
            made = Node(Call(SCALAR, args, (), (), tuple(shapes)), (), tuple(numbers), _location(node))
        else:
            if op is RESHAPE:
                op = torch.ops.aten.view.default
            made = Node(Call(op, args, kwargs, inputs, tuple(shapes)), tuple(operands), tuple(numbers), _location(node))
        self._nodes.append(made)
        self.made[node] = made

        def values(x: Any) -> Any:
            if isinstance(x, tuple):
                return tuple(map(values, x))
            return None if x is None else made.value(x)

        return values(grouped)

    def _outputs(self, val: Any, shapes: list[Shape | None], symbolic: Sequence[Any] | None) -> Any:
        """Appends the flat shapes; the result is nested as ``val`` is, with the index of each tensor's output."""
        if isinstance(val, list | tuple):
            return tuple(self._outputs(x, shapes, symbolic) for x in val)
        index = len(shapes)
        if not isinstance(val, torch.Tensor):
            shapes.append(None)
            return None
        shapes.append(_shape(val, symbolic[index] if symbolic else self._symbols(val)))
        return index

    def _symbols(self, val: torch.Tensor) -> tuple[bool | str, ...] | None:
        """The names of the sizes: of a symbol its own, of what follows from symbols one for each expression."""
        if self._names is None:
            return None
        return tuple(self._symbol(n) if isinstance(n, torch.SymInt) else False for n in val.shape)

    def _symbol(self, size: torch.SymInt) -> str | bool:
        assert self._names is not None
        expression = size.node.expr
        if expression.is_Integer:
            return False
        own = self._names.get(str(expression), "")
        return (
            own
            if own.isidentifier()
            else self._derived.setdefault(self._expression(size).text, f"e{len(self._derived)}")
        )

    def _expression(self, size: torch.SymInt) -> SizeExpression:
        assert self._names is not None
        try:
            return SizeExpression(_hint(size), expression_text(size.node.expr, self._names))
        except (KeyError, ValueError) as error:
            raise _ProblemError(f"the size {size} does not follow from the inputs' sizes: {error}") from None
