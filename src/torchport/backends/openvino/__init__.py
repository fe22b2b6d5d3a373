"""The OpenVINO backend: inference on Intel's runtime. See README.md in this folder."""

from torchport.backends.openvino.backend import OpenvinoBackend
from torchport.backends.openvino.options import OpenvinoOptions

__all__ = ["OpenvinoBackend", "OpenvinoOptions"]
