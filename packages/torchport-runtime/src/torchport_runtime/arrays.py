"""numpy arrays from weights that lie in a file, and from whatever a caller has."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchport_runtime.errors import UnsupportedOperationError
from torchport_runtime.saved_module import SavedModule

_WEIGHT_DTYPES: dict[str, type] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "U16": np.uint16,
    "F16": np.float16,
    "I32": np.int32,
    "U32": np.uint32,
    "F32": np.float32,
    "F64": np.float64,
    "I64": np.int64,
    "U64": np.uint64,
    "C64": np.complex64,
    "C128": np.complex128,
}


def arrays_of_weights(saved: SavedModule) -> dict[str, Any]:
    """The weights by their own names; they lie where the file is mapped, and are not to be written to.

    Raises:
        UnsupportedOperationError: numpy has no such scalar type.
    """
    found: dict[str, Any] = {}
    for name, weight in saved.manifest.weights.items():
        if not weight.shares:
            raw = saved.weights[name]
            dtype = _WEIGHT_DTYPES.get(raw.dtype)
            if dtype is None:
                raise UnsupportedOperationError(
                    f"the weight {name!r} is of {raw.dtype}, which numpy lacks; lower the module in another scalar type"
                )
            found[name] = np.frombuffer(raw.data, dtype).reshape(raw.sizes)
    return found


def array_of(value: Any) -> Any:
    """A caller's value as an array, without a copy where it offers DLPack or is one; else as it is."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value) if hasattr(value, "__array__") else value
    return np.from_dlpack(value)
