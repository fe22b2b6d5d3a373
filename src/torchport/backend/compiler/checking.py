"""Whether a compiled program computes what its graph says, asked when it is compiled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from torchport.backend.compiler.program import CompilerInput, Executable


def check_results(program: CompilerInput, executable: Executable) -> None:
    """Compares a program with the graph that it was made from; a compiler that is silently wrong is found so.

    Each output may differ by what another order of summation gives: 1e-4 (1e-2 in half precision) of its largest
    number, and twenty times what rounding the inputs otherwise does to it, where it is ill-conditioned.

    Args:
        program: what was compiled.
        executable: takes and gives tensors.

    Raises:
        ValueError: an output differs by more.
    """
    inputs = program.example_inputs()
    with torch.no_grad():
        wanted = program.module(*inputs)
        shaken = [program.module(*[_rounded_otherwise(x, seed) for x in inputs]) for seed in (1, 2)]
    for i, (ours, theirs) in enumerate(zip(executable(*inputs), wanted, strict=True)):
        if theirs.is_floating_point():
            base = (1e-2 if theirs.dtype is torch.float16 else 1e-4) * max(1.0, _largest(theirs))
            allowed = base + 20 * max(_largest(other[i] - theirs) for other in shaken)
        else:
            allowed = 0.0
        try:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=allowed, equal_nan=True, check_stride=False)
        except AssertionError as error:
            raise ValueError(f"its output {i} differs from PyTorch's: {error}") from error


def _rounded_otherwise(x: torch.Tensor, seed: int) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5
    return (x.double() * (1 + noise * 4 * torch.finfo(x.dtype).eps)).to(x.dtype)


def _largest(x: torch.Tensor) -> float:
    finite = x[x.isfinite()].double().abs()
    return float(finite.max()) if finite.numel() else 0.0


def operands_of(node: fx.Node) -> list[torch.Tensor]:
    """The fake tensors that a node reads."""
    return _tensors(node.all_input_nodes)


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The fake tensors that a node reads and makes."""
    return _tensors([node, *node.all_input_nodes])


def _tensors(nodes: Sequence[fx.Node]) -> list[torch.Tensor]:
    values = [n.meta.get("val") for n in nodes]
    flat = [v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])]
    return [v for v in flat if isinstance(v, torch.Tensor)]
