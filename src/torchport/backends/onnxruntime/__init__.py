"""The ONNX Runtime backend: graphs become ONNX models. See README.md in this folder."""

from torchport.backends.onnxruntime.backend import OnnxruntimeBackend
from torchport.backends.onnxruntime.options import OnnxruntimeOptions

__all__ = ["OnnxruntimeBackend", "OnnxruntimeOptions"]
