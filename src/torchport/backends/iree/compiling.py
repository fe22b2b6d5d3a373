"""From a graph to IREE's bytes: PyTorch's dialect of MLIR, which IREE's compiler lowers itself."""

from __future__ import annotations

from dataclasses import replace

import iree.compiler as iree_compiler
from iree.compiler.extras.fx_importer import FxImporter
from iree.compiler.ir import Context

from torchport.backend.compiler import CompilerInput
from torchport.backends.iree.options import IreeOptions


def to_mlir(program: CompilerInput) -> str:
    """The graph as a function ``main`` of the torch dialect.

    Raises:
        Exception: of the importer: it has no form of an operator.
    """
    importer = FxImporter(context=Context())
    importer.import_stateless_graph(program.module.graph, func_name="main")
    return str(importer.module)


def to_vmfb(mlir: str, options: IreeOptions) -> bytes:
    """The compiled module.

    Raises:
        iree.compiler.CompilerToolError: the compiler cannot lower it.
    """
    try:
        return _compile(mlir, options)
    except iree_compiler.CompilerToolError:
        if not options.data_tiling:
            raise
        # Some layouts of matrices are beyond it yet; the plain ones are slower, and right.
        return _compile(mlir, replace(options, data_tiling=False))


def _compile(mlir: str, options: IreeOptions) -> bytes:
    made: bytes = iree_compiler.compile_str(
        mlir, input_type="torch", target_backends=["llvm-cpu"], extra_args=options.flags()
    )
    return made
