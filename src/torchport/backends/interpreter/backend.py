"""The interpreter: the contract's methods over PyTorch's own kernels."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from torchport.backend.capabilities import Capabilities, Support
from torchport.backend.computation import Computation
from torchport.backend.data import BackendData
from torchport.backend.device import BackendDevice, BackendDeviceType
from torchport.backend.interface import BackendImplInterface
from torchport.backends.interpreter.computation import InterpretedComputation
from torchport.backends.interpreter.memory import HELD, memory_of
from torchport.backends.interpreter.steps import Step, lower_call
from torchport.backends.interpreter.transfer import scalar_shape, to_device, to_host
from torchport.ir.call import Call, Operand
from torchport.ir.node import Node
from torchport.ir.shape import Shape

CPU = BackendDeviceType("CPU")
CUDA = BackendDeviceType("CUDA")

_WRITES_RUNNING_STATISTICS = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
"""Their schemas do not say so."""
_STEP_CACHE_SIZE = 1 << 16
_SCALAR_CACHE_SIZE = 1 << 12


class InterpreterBackend(BackendImplInterface):
    """Runs a graph through PyTorch's ATen kernels, on the CPU or on CUDA: what every operator means.

    A handle is a ``torch.Tensor`` on the concrete device; for a number, the Python number itself.
    """

    capabilities = Capabilities(
        dynamic_outputs=True,
        input_output_aliasing=True,
        random=True,
        random_state=True,
        eager_random_stream=True,
        error_recovery=True,
        serialization=True,
        symbolic_sizes=True,
        training=True,
    )

    def __init__(self) -> None:
        self._type = CPU
        self._ordinal = 0
        self._seed: int | None = None
        self._generators: dict[BackendDevice, torch.Generator] = {}
        self._steps: dict[tuple[int, BackendDevice], Step] = {}
        self._scalars: dict[tuple[Any, ...], BackendData] = {}
        self._scalar_shapes: dict[type, Shape] = {}
        self._lock = threading.Lock()
        self._compiled = 0
        self._executed = 0
        self._recovered = 0
        self._in_place = 0
        self._donated = 0

    def prepare_to_exit(self) -> None:
        """Drops what is cached; the generators go on where they are if the backend is activated again."""
        self._steps.clear()
        self._scalars.clear()

    # -- random numbers -----------------------------------------------------------------------------------------

    def set_rng_seed(self, seed: int) -> None:
        """Starts every device's generator again from ``seed``."""
        self._seed = seed
        for generator in self._generators.values():
            generator.manual_seed(seed)

    def get_rng_state(self, device: BackendDevice | None = None) -> torch.Tensor:
        """The state of a device's generator (the default device's, unless told)."""
        state: torch.Tensor = self._generator(device or self._default_device()).get_state()
        return state

    def set_rng_state(self, state: torch.Tensor, device: BackendDevice | None = None) -> None:
        """Puts a device's generator into a state that :meth:`get_rng_state` gave."""
        self._generator(device or self._default_device()).set_state(state)

    def _generator(self, device: BackendDevice) -> torch.Generator:
        generator = self._generators.get(device)
        if generator is None:
            generator = torch.Generator(self._place(device))
            if self._seed is not None:
                generator.manual_seed(self._seed)
            generator = self._generators.setdefault(device, generator)
        return generator

    # -- compiling and running ----------------------------------------------------------------------------------

    def supports(self, node: Node) -> Support:
        """Whether torch has a kernel for the node here, and it has no effect but its outputs."""
        op = node.op
        if not isinstance(op, OpOverload):
            return Support(True)
        if op._schema.is_mutable:
            return Support(False, f"{op} writes into its arguments; a graph holds functional operators only")
        if op._schema.name in _WRITES_RUNNING_STATISTICS and any(isinstance(a, Operand) for a in node.call.args[3:5]):
            return Support(False, f"{op} writes its running statistics; use aten._native_batch_norm_legit_functional")
        key = self._type.name
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(op._name, key):
            return Support(False, f"torch {torch.__version__} has no {key} kernel for {op}")
        return Support(True)

    def compile(self, instances: list[Computation]) -> list[Computation]:
        """The computations with their programs."""
        return [self._compile(c) for c in instances]

    def serialize_computation(self, computation: Computation) -> bytes:
        """The program's schedule: in which order, what in place. The rest follows from the graph."""
        if not isinstance(computation, InterpretedComputation):
            raise TypeError(f"{computation!r} is not compiled: pass what InterpreterBackend.compile() returned")
        return computation.schedule_text().encode()

    def deserialize_computation(self, payload: bytes, computation: Computation) -> Computation:
        """The computation with the program of a schedule."""
        return self._compile(computation, payload.decode())

    def cache_key(self) -> str:
        """The source of this package: whoever changes how schedules are made finds no old ones."""
        return _source_digest()

    def _compile(self, computation: Computation, schedule_text: str | None = None) -> InterpretedComputation:
        device = computation.devices[0]
        place, generator = self._place(device), self._generator(device)

        def lower(call: Call) -> Step:
            key = (call.digest, device)
            step = self._steps.get(key)
            if step is None:
                if len(self._steps) >= _STEP_CACHE_SIZE:
                    self._steps.clear()
                step = self._steps[key] = lower_call(call, place, generator)
            return step

        compiled = InterpretedComputation(computation, lower, generator, schedule_text)
        with self._lock:
            self._compiled += 1
        return compiled

    def execute_computation(
        self, computation: Computation, arguments: list[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        """The results; one whose computation failed has an ``error`` and no handle, the others are computed.

        An argument whose ``info`` is ``DONATED`` may lose its value to a result: its handle is then ``None``.

        Raises:
            TypeError: the computation was not compiled by this backend.
            ValueError: it is for another device, or the arguments do not fit.
        """
        if not isinstance(computation, InterpretedComputation):
            raise TypeError(f"{computation!r} is not compiled: pass what InterpreterBackend.compile() returned")
        if device != computation.device:
            raise ValueError(f"{computation.name!r} was compiled for {computation.device}, not for {device}")
        results, program = computation.execute(arguments)
        HELD.tidy()
        with self._lock:
            self._executed += 1
            if program is None:
                self._recovered += 1
            else:
                self._in_place += len(program.schedule.in_place)
                self._donated += len(program.schedule.donated)
        return results

    # -- data ---------------------------------------------------------------------------------------------------

    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        """A copy of the tensor on the device."""
        HELD.tidy()
        return to_device(tensor, shape, device, self._place(device))

    def make_computation_data_from_scalar(
        self, scalar: bool | int | float | complex, device: BackendDevice
    ) -> BackendData:
        """The number as it is; the same object for the same number."""
        # 0.0 == -0.0, and they are different numbers, so zeros are not shared.
        key = (type(scalar), scalar, device)
        data = self._scalars.get(key) if scalar else None
        if data is None:
            shape = self._scalar_shapes.get(type(scalar))
            if shape is None:
                shape = self._scalar_shapes[type(scalar)] = scalar_shape(scalar)
            data = BackendData(device, shape, scalar)
            if len(self._scalars) >= _SCALAR_CACHE_SIZE:
                self._scalars.clear()
            self._scalars[key] = data
        return data

    def make_tensor_from_computation_data(
        self, data: BackendData, logical_scalar_type: torch.dtype | None = None
    ) -> torch.Tensor:
        """A copy of the data on the host."""
        return to_host(data, logical_scalar_type)

    # -- devices ------------------------------------------------------------------------------------------------

    def get_default_device_type(self) -> BackendDeviceType:
        """The hardware behind the virtual device: CPU unless told."""
        return self._type

    def set_default_device_type(self, type: BackendDeviceType) -> None:
        """Chooses CPU or CUDA."""
        present = sorted({d.type for d in self.get_backend_devices()})
        if type not in present:
            raise ValueError(
                f"the interpreter has no {type} here; it has {', '.join(map(str, present))}. "
                "CUDA needs a build of torch with CUDA and a device that it can see."
            )
        self._type = type
        self._ordinal = 0

    def get_default_device_ordinal(self) -> int:
        """Which device of the default type."""
        return self._ordinal

    def set_default_device_ordinal(self, ordinal: int) -> None:
        """Chooses which device of the default type."""
        count = self._count(self._type)
        if not 0 <= ordinal < count:
            raise ValueError(f"there is no {self._type} device {ordinal}: ordinals go from 0 to {count - 1}")
        self._ordinal = ordinal

    def eager_fallback_device_type(self) -> BackendDeviceType:
        """The default type: fallbacks run where the data is."""
        return self._type

    def get_backend_devices(self) -> list[BackendDevice]:
        """The CPU, and every CUDA device."""
        return [BackendDevice(CPU)] + [BackendDevice(CUDA, i) for i in range(self._count(CUDA))]

    def get_backend_device(self, device: torch.device) -> BackendDevice:
        """The concrete device behind a virtual one.

        A device without an index, or with index 0, is the default device; index ``i`` is the ``i``-th one after it.

        Raises:
            ValueError: there are not that many.
        """
        ordinal = self._ordinal + (device.index or 0)
        count = self._count(self._type)
        if ordinal >= count:
            raise ValueError(f"{device} does not exist: the interpreter has {count} {self._type} device(s) here")
        return BackendDevice(self._type, ordinal)

    def _count(self, type: BackendDeviceType) -> int:
        if type == CPU:
            return 1
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def _default_device(self) -> BackendDevice:
        return BackendDevice(self._type, self._ordinal)

    def _place(self, device: BackendDevice) -> torch.device:
        """The torch device of a concrete device."""
        return torch.device("cpu") if device.type == CPU else torch.device(device.type.name.lower(), device.ordinal)

    # -- looking inside -----------------------------------------------------------------------------------------

    def get_metrics(self) -> Mapping[str, float]:
        """Programs, executions, the bytes that tensors' data holds now in this process, and those there are."""
        memory = {"bytes_held": HELD.nbytes(), **memory_of(self._place(self._default_device()))}
        with self._lock:
            return {
                "programs_compiled": self._compiled,
                "executions": self._executed,
                "executions_node_by_node": self._recovered,
                "in_place_ops": self._in_place,
                "donated_buffers": self._donated,
                **memory,
            }

    def create_metric_report(self) -> str:
        """The figures of :meth:`get_metrics`, one a line."""
        lines = [f"Interpreter on {self._default_device()}"]
        lines += [f"  {name}: {int(figure)}" for name, figure in self.get_metrics().items()]
        return "\n".join(lines)

    def get_computation_backend_text(self, computation: Computation) -> str:
        """The Python source of the program; the graph's text when it is not compiled yet."""
        return computation.source if isinstance(computation, InterpretedComputation) else computation.text


@cache
def _source_digest() -> str:
    digest = blake2b(digest_size=16)
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
