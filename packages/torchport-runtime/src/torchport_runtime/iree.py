"""Payloads of torchport's iree backend: programs for IREE's virtual machine (``.vmfb``)."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from torchport_runtime.backends import Availability
from torchport_runtime.compiled import CompiledBackend, ProgramHeader

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64


@cache
def _runtime() -> Any:
    return import_module("iree.runtime")


@cache
def _device(driver: str) -> tuple[Any, Any]:
    """The instance and the device that all programs of this process share."""
    runtime = _runtime()
    return runtime.VmInstance(), runtime.get_device(driver)


class VmProgram:
    """A program that is loaded. Threads take turns.

    Args:
        vmfb: the bytes of a module with a function ``main``.
        driver: ``local-task`` (as many threads as there are cores) or ``local-sync`` (the caller's own).

    Raises:
        Exception: of IREE: it cannot load the module.
    """

    def __init__(self, vmfb: bytes, driver: str = "local-task") -> None:
        runtime = _runtime()
        instance, self._device = _device(driver)
        module = runtime.VmModule.copy_buffer(instance, vmfb)
        self._context = runtime.VmContext(instance, [runtime.create_hal_module(instance, self._device), module])
        self._function = module.lookup_function("main")
        if self._function is None:
            raise ValueError("the module has no function 'main'")
        self._lock = threading.Lock()
        _programs.add(self)

    def close(self) -> None:
        """Lets go of what IREE holds; it cannot be called after that."""
        self._context = self._function = self._device = None

    def run(self, capsules: Sequence[Any]) -> list[Any]:
        """The outputs as buffer views, for DLPack capsules of row-major memory that begins at a multiple of 64."""
        runtime = _runtime()
        arguments = runtime.VmVariantList(len(capsules))
        for capsule in capsules:
            arguments.push_ref(self._device.from_dlpack_capsule(capsule))
        results = runtime.VmVariantList(4)
        with self._lock:
            self._context.invoke(self._function, arguments, results)
        return [results.get_as_object(i, runtime.HalBufferView) for i in range(results.size)]

    def capsule_of(self, view: Any) -> Any:
        """The DLPack capsule of an output."""
        return self._device.create_dlpack_capsule(view, 1, 0)


_programs: weakref.WeakSet[VmProgram] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """IREE's bindings complain of what is still there when the process ends."""
    for program in list(_programs):
        program.close()
    _device.cache_clear()
    _runtime.cache_clear()


def aligned(array: Array) -> Array:
    """The array itself where it is row-major, writable and begins at a multiple of 64 bytes; else a copy that is."""
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % _ALIGNMENT == 0:
        return array
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy: Array = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class IreeBackend(CompiledBackend):
    """Runs IREE's programs on the CPU."""

    def is_available(self) -> Availability:
        """Whether IREE's runtime is installed."""
        if find_spec("iree") is None or find_spec("iree.runtime") is None:
            return Availability(False, 'iree.runtime is not installed: pip install "torchport-runtime[iree]"')
        return Availability(True)

    def load_program(self, body: memoryview, header: ProgramHeader) -> Callable[[list[Array]], Sequence[Array]]:
        """The program of a body."""
        program = VmProgram(bytes(body))
        types = _runtime().HalElementType

        def run(arrays: list[Array]) -> Sequence[Array]:
            views = program.run([aligned(a).__dlpack__() for a in arrays])
            return [np.array(v.map().asarray(v.shape, types.map_to_dtype(v.element_type))) for v in views]

        return run
