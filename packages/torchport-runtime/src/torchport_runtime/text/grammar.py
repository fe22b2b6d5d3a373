"""The grammar of the text form. It is defined in :mod:`torchport.ir.text`; nothing of a text is ever executed."""

from __future__ import annotations

from typing import Any, NoReturn

from torchport_runtime.text.literals import nearest_hint, parse_constant, parse_int, parse_shape, parse_string
from torchport_runtime.text.makers import Makers
from torchport_runtime.text.tokens import Token, TokenStream

_NUMBER_TYPES: dict[str, type] = {"bool": bool, "int": int, "float": float, "complex": complex}
_DEEPEST_LIST = 32


def parse_graph(text: str, makers: Makers) -> Any:
    """What ``makers`` make of a text: its graph, whose inputs have shapes, and no data.

    Raises:
        IRSyntaxError: the text is not of the form, or names an operator that does not exist here.
    """
    return _Parser(text, makers).graph()


class _Parser:
    def __init__(self, text: str, makers: Makers) -> None:
        self._in = TokenStream(text)
        self._make = makers
        self._values: dict[int, Any] = {}
        self._waiting: list[tuple[int, Any]] = []  # parameters without a place among the nodes yet, last one first
        self._labels: dict[int, int] = {}  # of the parameters, by id of the node
        self._numbers: list[tuple[type, Any]] = []
        self._taken = 0  # so many numbers have a call
        self._nodes: list[Any] = []
        self._count = 0  # the % number that the next node would have
        self._operators: dict[str, Any] = {}
        self._calls: dict[tuple[Any, ...], Any] = {}
        # Of the call that is being read:
        self._operands: dict[int, tuple[Any, Any]] = {}
        self._taken_here: set[int] = set()

    # -- the graph ----------------------------------------------------------------------------------------------

    def graph(self) -> Any:
        self._in.skip_lines()
        self._in.expect("graph")
        self._in.expect("(")
        self._header()
        self._in.expect("{")
        self._in.end_line()
        while True:
            self._in.skip_lines()
            token = self._in.peek()
            if token.text == "return":
                break
            if token.kind == "end" or token.text == "}":
                self._fail("a graph ends with a line 'return …' before its '}'", token)
            self._node()
        results = self._results()
        self._in.skip_lines()
        self._in.expect("}")
        self._in.skip_lines()
        if self._in.peek().kind != "end":
            self._fail("nothing may follow the graph", self._in.peek())
        self._nodes += [node for _, node in reversed(self._waiting)]
        return self._make.graph(self._nodes, results)

    def _header(self) -> None:
        inputs: list[tuple[int, Any, Token]] = []
        locations: dict[int, str | None] = {}
        while True:
            self._in.skip_lines()
            token = self._in.next()
            if token.text == ")":
                break
            if token.kind == "value":
                label = int(token.text[1:])
                if inputs and label <= inputs[-1][0]:
                    self._fail("tensor inputs are numbered in ascending order", token)
                self._in.expect(":")
                inputs.append((label, parse_shape(self._in, self._make), token))
            elif token.kind == "number":
                self._number_input(token)
            else:
                self._fail("expected an input, '%0: f32[3]' or '$0: float = 0.5', or ')'", token)
            comma = self._in.accept(",")
            if token.kind == "value" and self._in.peek().kind == "end":
                locations[inputs[-1][0]] = self._location()
            if not comma:
                self._in.skip_lines()
                self._in.expect(")")
                break
        for label, shape, token in inputs:
            node = self._make.leaf(shape, locations.get(label))
            self._define(label, self._make.value(node, 0), token)
            self._waiting.append((label, node))
            self._labels[id(node)] = label
        self._waiting.reverse()

    def _number_input(self, token: Token) -> None:
        if int(token.text[1:]) != len(self._numbers):
            self._fail(f"number inputs are numbered in order: expected ${len(self._numbers)}", token)
        self._in.expect(":")
        name = self._in.next()
        type_ = _NUMBER_TYPES.get(name.text)
        if type_ is None:
            self._fail(f"expected the type of a number: {', '.join(_NUMBER_TYPES)}", name)
        self._in.expect("=")
        at = self._in.peek()
        value = self._item(0)
        if type(value) is not type_:
            self._fail(f"expected a value of type {name.text}, as in '{token.text}: {name.text} = {type_()!r}'", at)
        self._numbers.append((type_, value))

    def _results(self) -> list[Any]:
        at = self._in.expect("return")
        results: list[Any] = []
        while self._in.peek().kind != "end":
            if results:
                self._in.expect(",")
            results.append(self._read(self._in.next()))
        if self._taken < len(self._numbers):
            self._fail(f"no call takes the number input ${self._taken}; remove it from the header", at)
        return results

    # -- nodes --------------------------------------------------------------------------------------------------

    def _node(self) -> None:
        outputs = self._outputs()
        name = self._in.next()
        if name.kind != "name":
            self._fail("expected an operator, as 'aten.mm.default'", name)
        op = self._operator(name)
        self._operands = {}
        self._taken_here = set()
        args, kwargs = self._arguments()
        operands, inputs = self._whole_operands(name)
        numbers = self._whole_numbers(name)
        self._in.end_line()
        shapes = tuple(shape for _, shape, _ in outputs)
        numbered = [label - i for i, (label, _, _) in enumerate(outputs) if label is not None]
        self._place(numbered[0] if numbered else None, operands)
        node = self._make.node(self._call(op, args, kwargs, inputs, shapes), operands, numbers, self._location())
        self._nodes.append(node)
        self._count += max(1, len(outputs))
        for i, (label, _, token) in enumerate(outputs):
            if label is not None:
                self._define(label, self._make.value(node, i), token)

    def _outputs(self) -> list[tuple[int | None, Any, Token]]:
        outputs: list[tuple[int | None, Any, Token]] = []
        while self._in.peek().kind == "value" or self._in.peek().text == "_":
            token = self._in.next()
            if token.text == "_":
                outputs.append((None, None, token))
            else:
                self._in.expect(":")
                outputs.append((int(token.text[1:]), parse_shape(self._in, self._make), token))
            if not self._in.accept(","):
                self._in.expect("=")
                return outputs
        if outputs:
            self._fail("expected another output, '%0: f32[3]' or '_'", self._in.peek())
        return outputs

    def _arguments(self) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        self._in.expect("(")
        while not self._in.accept(")"):
            if args or kwargs:
                self._in.expect(",")
            token = self._in.peek()
            if self._in.peek(1).text == "=" and token.kind == "name":
                self._in.next()
                self._in.next()
                if token.text in kwargs:
                    self._fail(f"the argument {token.text!r} is given twice", token)
                kwargs[token.text] = self._item(0)
            elif kwargs:
                self._fail("positional arguments come before those with a name", token)
            else:
                args.append(self._item(0))
        return tuple(args), tuple(kwargs.items())

    def _whole_operands(self, at: Token) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        missing = set(range(len(self._operands))) - self._operands.keys()
        if missing:
            self._fail(f"no argument is operand @{min(missing)} of this call", at)
        found = [self._operands[i] for i in range(len(self._operands))]
        return tuple(value for value, _ in found), tuple(shape for _, shape in found)

    def _whole_numbers(self, at: Token) -> tuple[Any, ...]:
        count = len(self._taken_here)
        if self._taken_here != set(range(self._taken, self._taken + count)):
            self._fail(f"calls take the number inputs in order: ${self._taken} is the next", at)
        self._taken += count
        return tuple(value for _, value in self._numbers[self._taken - count : self._taken])

    def _place(self, label: int | None, reads: tuple[Any, ...]) -> None:
        """Lists the parameters that stand before the next node: by its number, or because it reads them."""
        last = (
            max((self._labels.get(id(self._make.node_of(value)), -1) for value in reads), default=-1)
            if self._waiting
            else -1
        )
        while self._waiting:
            own, node = self._waiting[-1]
            if own > last and (own > self._count if label is None else own >= label):
                break
            self._waiting.pop()
            self._nodes.append(node)
            self._count = own + 1
        if label is not None:
            self._count = label

    def _define(self, label: int, value: Any, token: Token) -> None:
        if label in self._values:
            self._fail(f"%{label} is defined twice", token)
        self._values[label] = value

    def _read(self, token: Token) -> Any:
        if token.kind != "value":
            self._fail("expected a value, as '%0'", token)
        value = self._values.get(int(token.text[1:]))
        if value is None:
            self._fail(f"{token.text} is read before it is defined", token)
        return value

    def _call(self, op: Any, args: Any, kwargs: Any, inputs: Any, outputs: Any) -> Any:
        # By repr, as the digest is: 1, 1.0 and True are equal keys of a dictionary and different arguments.
        key = (op, repr(args), repr(kwargs), inputs, outputs)
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = self._make.call(op, args, kwargs, inputs, outputs)
        return found

    def _operator(self, token: Token) -> Any:
        name = token.text
        if name not in self._operators:
            if name == "port.device_data":
                self._fail("device data are inputs of the graph: write them in its header", token)
            op = self._make.operator(name)
            if op is None:
                hint = nearest_hint(name, self._make.operator_names())
                self._fail(f"there is no operator {name!r}{hint or '; is its library imported?'}", token)
            self._operators[name] = op
        return self._operators[name]

    # -- items --------------------------------------------------------------------------------------------------

    def _item(self, depth: int) -> Any:
        token = self._in.next()
        kind, text = token.kind, token.text
        if kind == "value":
            return self._operand(token)
        if kind == "number":
            index = int(text[1:])
            if index >= len(self._numbers):
                self._fail(f"{text} is no number input of this graph", token)
            if index < self._taken:
                self._fail(f"{text} is taken by an earlier call; each call takes numbers of its own", token)
            self._taken_here.add(index)
            return self._make.number(index - self._taken, self._numbers[index][0])
        if text == "[":
            return self._list(token, depth)
        if kind == "int":
            return parse_int(self._in, token)
        if kind == "float":
            return float(text)
        if kind == "string":
            return parse_string(self._in, token)
        if kind == "name":
            return parse_constant(self._in, token, self._make)
        return self._fail("expected an argument" if kind != "opaque" else "a constant in <…> has no text form", token)

    def _operand(self, token: Token) -> Any:
        value = self._read(token)
        index = len(self._operands)
        if self._in.accept("@"):
            at = self._in.next()
            index = parse_int(self._in, at)
            # Operands are interned by index, so a huge index would make as many.
            if not 0 <= index < self._in.count_in_line("value"):
                self._fail("there are not so many operands in this call", at)
        shape = parse_shape(self._in, self._make) if self._in.accept("as") else self._make.shape_of(value)
        if self._operands.setdefault(index, (value, shape)) != (value, shape):
            self._fail(f"operand @{index} of this call is given as two values", token)
        return self._make.operand(index)

    def _list(self, token: Token, depth: int) -> tuple[Any, ...]:
        if depth == _DEEPEST_LIST:
            self._fail(f"lists are nested more than {_DEEPEST_LIST} deep", token)
        items: list[Any] = []
        while not self._in.accept("]"):
            if items:
                self._in.expect(",")
            items.append(self._item(depth + 1))
        return tuple(items)

    def _location(self) -> str | None:
        comment = self._in.comment
        if comment is None:
            return None
        text = comment.text[1:].strip()
        if text.startswith('"'):
            return parse_string(self._in, Token("string", text, comment.column))
        return text

    def _fail(self, message: str, token: Token) -> NoReturn:
        self._in.fail(message, token)
