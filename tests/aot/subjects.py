"""Modules to lower, and backends to lower them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from torchport.aot.compile_spec import CompileSpec
from torchport.aot.lowered_module import LoweredModule
from torchport.aot.restoring import load
from torchport.backend import Availability, BackendRegistrar, Node, PyTorchBackendInterface, Support
from torchport.backends.interpreter import InterpreterBackend


class Pair(NamedTuple):
    first: Any
    second: Any


class Nested(nn.Module):
    """Every kind of argument and result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, extra=None, *, scale=2.0, flag="a"):
        self.calls.add_(1)
        y = self.linear(x) * scale
        if extra is not None:
            y = y + extra["bias"]
        return {"y": y, "rest": (None, 3, [y.sum(0)], flag)}, (self.calls.clone(),), Pair(y[:1], x.shape[0] * 2)

    def only(self, a, b=1):
        return (a + b,)


class Cache(nn.Module):
    """A KV cache: what is attended to grows into a buffer."""

    def __init__(self, length: int = 8, width: int = 4) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(length, width))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        at = torch.arange(self.keys.shape[0]) == self.position
        self.keys.copy_(torch.where(at[:, None], x, self.keys))
        self.position.add_(1)
        return torch.softmax(self.query(x) @ self.keys.t(), -1) @ self.keys


class Tied(nn.Module):
    """One weight under two names, used by two methods."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))

    def encode(self, tokens):
        return self.embed(tokens).mean(0)


class Block(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """Two submodules of one class, and something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = Block()

    def forward(self, x):
        return self.second(torch.sin(self.first(x))).sum(-1)


class Scaled(nn.Module):
    """One weight, three operators."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))

    def forward(self, x, h):
        return torch.sin(x * self.scale) + h


def spec_of(*args: Any, **kwargs: Any) -> dict[str, CompileSpec]:
    return {"forward": CompileSpec(args, kwargs)}


def again(lowered: LoweredModule, folder: Path) -> LoweredModule:
    lowered.save(folder / "m.tport")
    return load(folder / "m.tport")


class Switched(PyTorchBackendInterface):
    """The interpreter, with compile and execute switched separately, and operators that it refuses."""

    def __init__(self) -> None:
        inner = InterpreterBackend().delegate()
        self.inner = inner
        self.can_compile = True
        self.can_execute = True
        self.refuses: Callable[[Node], bool] = lambda node: False
        self.broken: set[str] = set()
        self.calls: list[str] = []

    def is_available(self) -> Availability:
        missing = [what for what, can in (("compile", self.can_compile), ("execute", self.can_execute)) if not can]
        return Availability(not missing, f"it cannot {' and '.join(missing)} here" if missing else "")

    def supports(self, node: Node) -> Support:
        return Support(False, "it was told so") if self.refuses(node) else Support(True)

    def preprocess(self, module: Any, method_compile_spec: Mapping[str, Any]) -> dict[str, bytes]:
        self.calls.append("preprocess")
        self.options = dict(method_compile_spec)
        return super().preprocess(module, method_compile_spec)

    def compile(self, processed: Mapping[str, bytes], method_compile_spec: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append("compile")
        for name in processed:
            if name in self.broken:
                raise RuntimeError(f"{name} is broken")
        return self.inner.compile(processed, method_compile_spec)

    def execute(self, handle: Any, inputs: list[Any]) -> list[Any]:
        self.calls.append("execute")
        if "execute" in self.broken:
            raise RuntimeError("out of luck")
        return self.inner.execute(handle, inputs)


@contextmanager
def registered(name: str, backend: PyTorchBackendInterface) -> Iterator[PyTorchBackendInterface]:
    with BackendRegistrar(name, backend):
        yield backend
