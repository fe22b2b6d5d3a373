"""The parts of a graph's text that are the same wherever they stand: shapes and constants."""

from __future__ import annotations

import json
from typing import Any

import torch

from torchport.ir.operators import nearest_hint
from torchport.ir.shape import Shape, dtype_name
from torchport.ir.tokens import Token, TokenStream

_TORCH_CONSTANTS = {str(x): x for x in vars(torch).values() if isinstance(x, torch.layout | torch.memory_format)}
_DTYPES = {dtype_name(x): x for x in vars(torch).values() if isinstance(x, torch.dtype)}
_WORDS = {"None": None, "True": True, "False": False, "inf": float("inf"), "nan": float("nan")}


def parse_constant(stream: TokenStream, token: Token) -> Any:
    """The constant that begins with this token, a name: words, dtypes, layouts, memory formats, devices, complex."""
    text = token.text
    if text in _WORDS:
        return _WORDS[text]
    if text in _DTYPES:
        return _DTYPES[text]
    if text in _TORCH_CONSTANTS:
        return _TORCH_CONSTANTS[text]
    if text == "device":
        stream.expect("(")
        at = stream.next()
        name = parse_string(stream, at)
        stream.expect(")")
        try:
            return torch.device(name)
        except RuntimeError as error:
            stream.fail(str(error).splitlines()[0], at)
    if text == "complex":
        stream.expect("(")
        real = _parse_float(stream)
        stream.expect(",")
        imaginary = _parse_float(stream)
        stream.expect(")")
        return complex(real, imaginary)
    hint = nearest_hint(text, [*_WORDS, *_DTYPES, *_TORCH_CONSTANTS, "device", "complex"])
    return stream.fail(f"{text!r} is no constant{hint}", token)


def parse_shape(stream: TokenStream) -> Shape:
    """A shape: ``f32[3, ?4, s0=5]{20, 5, 1}``."""
    token = stream.next()
    dtype = _DTYPES.get(token.text)
    if dtype is None:
        stream.fail(f"{token.text!r} is no dtype{nearest_hint(token.text, list(_DTYPES))}", token)
    sizes: list[int] = []
    symbolic: list[bool | str] = []
    stream.expect("[")
    while not stream.accept("]"):
        if sizes:
            stream.expect(",")
        symbolic.append(_parse_symbol(stream))
        sizes.append(parse_int(stream, stream.next()))
        if sizes[-1] < 0:
            stream.fail("a size is never negative", token)
    strides: list[int] | None = None
    if stream.accept("{"):
        strides = []
        while not stream.accept("}"):
            if strides:
                stream.expect(",")
            strides.append(parse_int(stream, stream.next()))
        if len(strides) != len(sizes):
            stream.fail(f"{len(sizes)} sizes and {len(strides)} strides; they must be as many", token)
    return Shape(dtype, tuple(sizes), None if strides is None else tuple(strides), tuple(symbolic))


def _parse_symbol(stream: TokenStream) -> bool | str:
    """The mark of a symbolic size: ``?``, or a name and ``=``."""
    if stream.peek().kind != "name" or stream.peek(1).text != "=":
        return stream.accept("?")
    name = stream.next().text
    stream.expect("=")
    return name


def parse_int(stream: TokenStream, token: Token) -> int:
    """The integer of a token."""
    if token.kind != "int":
        stream.fail("expected an integer", token)
    try:
        return int(token.text)
    except ValueError:
        stream.fail("the integer is too long", token)


def _parse_float(stream: TokenStream) -> float:
    token = stream.next()
    if token.kind in ("float", "int") or token.text in ("inf", "nan"):
        return float(token.text)
    return stream.fail("expected a float", token)


def parse_string(stream: TokenStream, token: Token) -> str:
    """The string of a token, written as JSON."""
    if token.kind != "string":
        stream.fail('expected a string in "…"', token)
    try:
        return str(json.loads(token.text))
    except json.JSONDecodeError as error:
        stream.fail(f"the string is not as JSON writes it: {error.msg}", token)
