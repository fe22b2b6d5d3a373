"""Exported programs: from files and TorchScript, and in core operators."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import fx
from torch._export.converter import TS2EPConverter
from torch.export import ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchport.aot.compile_spec import CompileSpec
from torchport.errors import CaptureError, CompileSpecError

_CHECK = torch.ops.aten._assert_tensor_metadata.default


def program_of_file(path: Path) -> ExportedProgram:
    """The program of a ``.pt2`` file.

    Raises:
        CompileSpecError: the file is none that ``torch.export.save`` wrote.
    """
    if not path.is_file():
        raise CompileSpecError(f"there is no file {path}; give the path of one that torch.export.save wrote")
    try:
        # torch logs a traceback, then tries an old format, for what is no zip at all.
        program = torch.export.load(path) if zipfile.is_zipfile(path) else None
    except Exception as error:
        raise CompileSpecError(
            f"torch.export cannot read {path}: {error}\nWrite it again with torch.export.save, with this torch "
            f"({torch.__version__})."
        ) from error
    if program is None:
        raise CompileSpecError(f"{path} is no file of torch.export.save, or it was cut short; copy or save it again")
    return program


_TRAIN = ("aten::dropout", "aten::native_dropout", "aten::batch_norm", "aten::_native_batch_norm_legit")


def trains(program: ExportedProgram) -> bool:
    """Whether an exported program was captured in training mode, as far as its graph says: it does not say itself."""
    for node in program.graph.nodes:
        name = getattr(getattr(node.target, "_schema", None), "name", "")
        if name.startswith(_TRAIN) and any(argument is True for argument in node.args):
            return True
    return False


@contextmanager
def torch_warns_of_itself() -> Iterator[None]:
    """Keeps torch's warnings about what it calls itself from the user, who can do nothing about them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def converted(module: torch.jit.ScriptModule, name: str, spec: CompileSpec) -> ExportedProgram:
    """A TorchScript module as an exported program.

    Raises:
        CaptureError: torch cannot convert it.
    """
    warnings.warn(
        "TorchScript is deprecated in PyTorch; lower the nn.Module that it was made from, or an ExportedProgram",
        DeprecationWarning,
        stacklevel=5,
    )
    if name != "forward" or spec.dynamic_shapes:
        raise CaptureError(
            f"{name}: of a TorchScript module forward can be lowered, with static shapes; lower the nn.Module instead"
        )
    try:
        with torch_warns_of_itself():
            return TS2EPConverter(module, spec.args, dict(spec.kwargs or {})).convert()
    except Exception as error:
        raise CaptureError(f"torch cannot convert this TorchScript module: {error}") from error


def decomposed(name: str, program: ExportedProgram) -> ExportedProgram:
    """The program in core operators.

    Args:
        name: the method's, for messages.
        program: the program; it stays as it is.

    Raises:
        CaptureError: torch cannot decompose it.
    """
    failures: list[Exception] = []
    # Where heads are strided as GPT-2's are, torch decomposes its fused attention for CPU to a view that cannot be. The
    # operators that attention is defined by are the second way.
    for way in (nullcontext(), sdpa_kernel(SDPBackend.MATH)):
        try:
            with torch_warns_of_itself(), way:
                made: ExportedProgram = program.run_decompositions()
        except Exception as error:  # noqa: BLE001 - whatever torch raises; the first is the cause of ours
            failures.append(error)
        else:
            return made
    reason = (str(failures[0]).strip() or type(failures[0]).__name__).splitlines()[0]
    raise CaptureError(
        f"{name} cannot be captured: torch cannot decompose it to core operators: {reason}\nReplace the operator that "
        "the cause above is about, or lower only submodules, each by a to_backend of its own."
    ) from failures[0]


def drop_checks_of_types(graph: fx.Graph) -> None:
    """Takes out the calls by which torch.export asserts a dtype or a layout where ``Tensor.to`` is called.

    The graph itself says both, so they say nothing that may fail, and every backend would have to know them.
    """
    for node in list(graph.nodes):
        sizes_and_strides = (*node.args[1:3], node.kwargs.get("size"), node.kwargs.get("stride"))
        if node.target is _CHECK and all(x is None for x in sizes_and_strides):
            graph.erase_node(node)
