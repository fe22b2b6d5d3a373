"""From a graph to OpenVINO's model."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from pathlib import Path
from typing import Any

from torchport.backend.compiler import CompilerInput
from torchport_runtime.openvino import openvino_package, packed

openvino = openvino_package()


def to_model(program: CompilerInput) -> Any:
    """The model of a graph, with our names on its inputs.

    Raises:
        Exception: of the converter: it cannot.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        examples = program.example_inputs()
        model = openvino.convert_model(program.exported(), example_input=tuple(examples))
    inputs = list(model.inputs)
    if len(inputs) != len(examples):
        raise ValueError(f"the model has {len(inputs)} inputs; the graph has {len(examples)}")
    for i, (port, example) in enumerate(zip(inputs, examples, strict=True)):
        port.set_names({f"input_{i}"})
        port.get_node().set_partial_shape(openvino.PartialShape(list(example.shape)))
    model.validate_nodes_and_infer_types()
    return model


def to_bytes(model: Any) -> bytes:
    """The model's two files as one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        openvino.save_model(model, path, compress_to_fp16=False)
        return packed(path.read_bytes(), path.with_suffix(".bin").read_bytes())
