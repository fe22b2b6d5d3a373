"""Inductor's own entry points, in one place: they are PyTorch's internals, and move between its versions.

``compile_fx_inner`` takes a functional graph at Inductor's level of operators and gives a callable; it is what
``torch.compile`` calls after all that it does itself. tests/backends/test_inductor_backend.py tells when it changes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._inductor import aoti_compile_and_package
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.package.package import load_package
from torch._inductor.virtualized import V
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """What Inductor wants written in other operators."""
    return dict(select_decomp_table())


def compile_module(
    module: fx.GraphModule, written: Sequence[int], settings: dict[str, Any]
) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    """A callable for the module: it takes a list of tensors.

    Args:
        module: at Inductor's level; ``aten.copy_`` into a placeholder at its end is a write to the input.
        written: positions of the inputs that are written.
        settings: of ``torch._inductor.config``, for this compilation.
    """
    inputs = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]
    output = module.graph.output_node()
    output.meta["user_visible_output_idxs"] = list(range(len(output.meta["val"])))
    mode = next((x.fake_mode for x in inputs if isinstance(x, FakeTensor)), None)
    with inductor_config.patch(settings), V.set_fake_mode(mode), tracing(TracingContext(mode)):
        joint_graph_passes(module)
        compiled = compile_fx_inner(module, inputs, static_input_idxs=tuple(written))
    # The object's own __call__ adds a profiler's range.
    call: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] = compiled.current_callable  # type: ignore[attr-defined]
    return call


def package(program: ExportedProgram, settings: dict[str, Any]) -> bytes:
    """A program compiled ahead of time by AOTInductor: the bytes of its package."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own modules call what other modules of it have deprecated
        aoti_compile_and_package(program, package_path=file, inductor_configs=settings)
    return file.getvalue()


def load(package_bytes: bytes | memoryview) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    """What runs a package: it takes a list of tensors."""
    run: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] = load_package(io.BytesIO(package_bytes)).loader.run
    return run
