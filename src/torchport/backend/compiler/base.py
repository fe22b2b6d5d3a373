"""The base class for who has a compiler for graphs: both interfaces follow from a method or two."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import fx
from torch._ops import OpOverload

from torchport import metrics
from torchport.backend.availability import Availability
from torchport.backend.capabilities import Capabilities, Support
from torchport.backend.compiler.computation import (
    CompiledComputation,
    Variant,
    aliases_that_hold,
    compiler_input,
    shape_of_result,
)
from torchport.backend.compiler.decompositions import core_decompositions
from torchport.backend.compiler.delegate import CompilerDelegate
from torchport.backend.compiler.draws import can_be_drawn
from torchport.backend.compiler.inputs import Inputs, plan_inputs
from torchport.backend.compiler.payload import header_of, pack, unpack
from torchport.backend.compiler.program import CompilerInput, Executable, Outputs
from torchport.backend.compiler.retracing import Decompositions
from torchport.backend.compiler.support import support_of
from torchport.backend.computation import Computation
from torchport.backend.data import BackendData
from torchport.backend.delegate import PyTorchBackendInterface
from torchport.backend.device import BackendDevice, BackendDeviceType
from torchport.backend.interface import BackendImplInterface
from torchport.backend.options import NoOptions, parse_options
from torchport.backend.registry import default_registry
from torchport.errors import DamagedFileError
from torchport.ir.call import Call
from torchport.ir.graph import Graph
from torchport.ir.node import Node
from torchport.ir.shape import Shape

_FALLBACKS = metrics.counter("CompilerFallback")
_CPU = BackendDeviceType("CPU")


class CompilerBackend(BackendImplInterface):
    """A whole backend from a compiler for graphs.

    A subclass writes :meth:`compile_graph`, and says with :meth:`supports_operator` what its compiler takes. Whatever
    else backends need follows: data are tensors on the CPU, random numbers are drawn as eager PyTorch draws them and
    given to the program, numbers that change are its inputs, what the compiler fails on runs in the interpreter, and
    modules are lowered ahead of time by :meth:`delegate`.

    Attributes:
        Options: a frozen dataclass of the backend's options; each has a default.
        kept: operators of :func:`core_decompositions` that the compiler takes whole.
        options: what this instance was told.
        fallbacks: computation → why the interpreter runs it.
    """

    Options: ClassVar[type] = NoOptions
    kept: ClassVar[frozenset[OpOverload]] = frozenset()
    capabilities = Capabilities(random=True, random_state=True, eager_random_stream=True, training=True)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.fallbacks: dict[str, str] = {}
        self._host: BackendImplInterface | None = None
        self._support: dict[int, Support] = {}
        self._lock = threading.Lock()
        self._seed: int | None = None

    @classmethod
    def availability(cls) -> Availability:
        """Whether graphs can be compiled and run here; else why not, and what to do."""
        return Availability(True)

    @classmethod
    def runtime_availability(cls) -> Availability:
        """Whether programs that were compiled elsewhere can be run here, which may need less."""
        return cls.availability()

    # -- what a vendor writes -----------------------------------------------------------------------------------

    @abstractmethod
    def compile_graph(self, program: CompilerInput) -> Executable:
        """A graph, compiled: a callable that takes a handle for each input and returns one for each output.

        Raises:
            Exception: of any kind: the compiler cannot. The interpreter runs the graph; the text becomes the reason.
        """

    def supports_operator(self, node: fx.Node) -> Support:
        """Whether the compiler takes a node of a decomposed graph; its operands have ``meta["val"]``."""
        return Support(True)

    def decompositions(self) -> Decompositions:
        """What the compiler does not take, in what it takes; by default all but core ATen and ``kept``."""
        return core_decompositions(self.kept)

    def serialize(self, executable: Executable) -> bytes:
        """The program as bytes: what a file holds, and with ``Capabilities.serialization`` the cache on disk."""
        raise NotImplementedError(f"{type(self).__name__} does not save programs")

    def deserialize(self, payload: bytes | memoryview) -> Executable:
        """What :meth:`serialize` turned into bytes, ready to be called."""
        raise NotImplementedError(f"{type(self).__name__} does not save programs")

    @property
    def saves_programs(self) -> bool:
        """Whether the compiler's programs can be saved for a target: whether there is a :meth:`serialize`."""
        return type(self).serialize is not CompilerBackend.serialize

    def targets(self) -> Sequence[str]:
        """What the compiler can compile for, besides this machine."""
        return ()

    def payload_details(self) -> Mapping[str, Any]:
        """What a saved program's header says beside what all have: for the runtime without PyTorch, JSON."""
        return {}

    def with_options(self, options: Any) -> Self:
        """The same backend with other options: an instance of ``Options``, a mapping, or a text as ``a=1,b=2``."""
        chosen = parse_options(self.Options, options, self.options)
        return self if chosen == self.options else type(self)(chosen)

    def delegate(self) -> PyTorchBackendInterface:
        """The same compiler for modules that are lowered ahead of time."""
        return CompilerDelegate(self)

    # -- handles: tensors on the CPU, unless a subclass has arrays of its own -------------------------------------

    def from_host(self, tensor: torch.Tensor) -> Any:
        """The handle of a tensor on the CPU, which nobody will write to."""
        return tensor

    def to_host(self, handle: Any) -> torch.Tensor:
        """The tensor of a handle, on the CPU."""
        tensor: torch.Tensor = handle
        return tensor

    def copy_handle(self, handle: Any) -> Any:
        """A handle of its own with the same contents."""
        return self.from_host(self.to_host(handle).clone(memory_format=torch.preserve_format))

    def shape_of_handle(self, handle: Any, promised: Shape) -> Shape:
        """The shape of a result."""
        return shape_of_result(tuple(handle.shape), promised)

    # -- compiling and running ----------------------------------------------------------------------------------

    def supports(self, node: Node) -> Support:
        """Whether the compiler takes every operator that the node decomposes to, with the dtypes at hand."""
        call = node.call
        found = self._support.get(call.digest)
        if found is None:
            found = self._support[call.digest] = self._support_of(call, node.numbers)
        return found

    def _support_of(self, call: Call, numbers: Sequence[Any]) -> Support:
        if not isinstance(call.op, OpOverload):
            return Support(True)
        host = self.host.supports(Node(call))
        if not host:
            return host
        if call.is_random:
            drawn = can_be_drawn(call)
            if not drawn:
                return drawn
        return support_of(call, numbers, self.decompositions(), self.supports_operator)

    def compile(self, instances: list[Computation]) -> list[Computation]:
        """The computations with their programs; what the compiler fails on, with the interpreter's."""
        return [self._compile(c) for c in instances]

    def _compile(self, computation: Computation) -> Computation:
        graph = computation.graph
        numbers = [node.numbers[i] for node, i in graph.numbers]
        try:
            first = self.make_variant(graph, computation.name, plan_inputs(graph, numbers), computation.aliases)
        except Exception as error:  # noqa: BLE001 - a vendor's compiler; what it raised is the reason
            return self._on_host(computation, f"{type(error).__name__}: {error}")
        return CompiledComputation(computation, self, first)

    def make_variant(
        self, graph: Graph, name: str, inputs: Inputs, aliases: Mapping[int, int] | None = None
    ) -> Variant:
        """The program of a graph for some way of passing its numbers."""
        wanted = dict(aliases or {}) if self.capabilities.input_output_aliasing else {}
        program, outputs, held = compiler_input(graph, inputs, self, name, wanted)
        executable = self.compile_graph(program) if program.outputs else None
        drawing = None if inputs.draws is None else self.compile_draws(name, inputs.draws)
        header = header_of(inputs, outputs, program, {}) if self.capabilities.serialization else None
        return Variant(inputs, outputs, held, executable, drawing, header)

    def serialize_computation(self, computation: Computation) -> bytes:
        """The program that ran last, as :meth:`serialize` writes it."""
        if not isinstance(computation, CompiledComputation):
            raise NotImplementedError(f"{computation!r} is run by the interpreter, or not compiled")
        variant = computation.current
        assert variant.header is not None
        return pack(variant.header, b"" if variant.executable is None else self.serialize(variant.executable))

    def deserialize_computation(self, payload: bytes, computation: Computation) -> Computation:
        """The computation with the program of an earlier process."""
        graph = computation.graph
        inputs = plan_inputs(graph, [node.numbers[i] for node, i in graph.numbers])
        try:
            header, body = unpack(payload)
        except DamagedFileError as error:
            raise ValueError(str(error)) from error
        if not inputs.fit_constants(header.constants):
            raise ValueError("it was compiled for other constants")
        wanted = computation.aliases if self.capabilities.input_output_aliasing else {}
        _, held = aliases_that_hold(header.results, wanted)
        executable = self.deserialize(body) if header.outputs else None
        drawing = None if inputs.draws is None else self.compile_draws(computation.name, inputs.draws)
        variant = Variant(inputs, Outputs(header.results), held, executable, drawing, header)
        return CompiledComputation(computation, self, variant)

    def compile_draws(self, name: str, draws: Graph) -> Computation:
        """The computation of a graph of draws."""
        (drawing,) = self.host.compile([Computation(f"{name}-draws", draws.copy(), [self._host_device()])])
        return drawing

    def execute_computation(
        self, computation: Computation, arguments: list[BackendData], device: BackendDevice
    ) -> list[BackendData]:
        """The results of a compiled computation."""
        if isinstance(computation, CompiledComputation):
            return computation.execute(arguments)
        return self._execute_on_host(computation, arguments)

    def draw(self, drawing: Computation, numbers: Sequence[Any]) -> list[Any]:
        """Handles of what a graph of draws gives now, and the generator advances."""
        device = self._host_device()
        arguments = [self.host.make_computation_data_from_scalar(n, device) for n in numbers]
        drawn = self.host.execute_computation(drawing, arguments, device)
        return [self.from_host(d.handle) for d in drawn]

    # -- the interpreter behind it --------------------------------------------------------------------------------

    @property
    def host(self) -> BackendImplInterface:
        """An interpreter of its own: it keeps the generator, draws, and runs what the compiler fails on."""
        if self._host is None:
            with self._lock:
                if self._host is None:
                    host = default_registry().registration("interpreter").new_instance()
                    if self._seed is not None:
                        host.set_rng_seed(self._seed)
                    self._host = host
        return self._host

    def _host_device(self) -> BackendDevice:
        return self.host.get_backend_device(torch.device("cpu"))

    def _on_host(self, computation: Computation, reason: str) -> Computation:
        _FALLBACKS.value += 1
        self.fallbacks[computation.name] = reason
        warnings.warn(
            f"{type(self).__name__} could not compile {computation!r}; the interpreter runs it. {reason}",
            UserWarning,
            stacklevel=2,
        )
        device = self._host_device()
        (compiled,) = self.host.compile(
            [Computation(computation.name, computation.graph, [device], {}, computation.cause)]
        )
        return compiled

    def _execute_on_host(self, computation: Computation, arguments: list[BackendData]) -> list[BackendData]:
        device = self._host_device()
        tensors = len(computation.graph.parameters)
        given = [
            BackendData(device, a.shape, self.to_host(a.handle) if i < tensors else a.handle)
            for i, a in enumerate(arguments)
        ]
        results = self.host.execute_computation(computation, given, device)
        for data in results:
            if data.error is None:
                data.handle = self.from_host(data.handle)
        return results

    # -- random numbers -----------------------------------------------------------------------------------------

    def set_rng_seed(self, seed: int) -> None:
        """Starts the generator again from ``seed``."""
        self._seed = seed
        if self._host is not None:
            self._host.set_rng_seed(seed)

    def get_rng_state(self) -> torch.Tensor:
        """The state of the generator."""
        return self.host.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Puts the generator into a state that :meth:`get_rng_state` gave."""
        self.host.set_rng_state(state)

    # -- data ---------------------------------------------------------------------------------------------------

    def make_computation_data_from_tensor(
        self, tensor: torch.Tensor, shape: Shape, device: BackendDevice
    ) -> BackendData:
        """A copy of the tensor, as a handle."""
        data = self.host.make_computation_data_from_tensor(tensor, shape, self._host_device())
        return BackendData(device, data.shape, self.from_host(data.handle))

    def make_computation_data_from_scalar(
        self, scalar: bool | int | float | complex, device: BackendDevice
    ) -> BackendData:
        """The number as it is."""
        return self.host.make_computation_data_from_scalar(scalar, device)

    def make_tensor_from_computation_data(
        self, data: BackendData, logical_scalar_type: torch.dtype | None = None
    ) -> torch.Tensor:
        """A copy of the data on the host, with the strides of the data's shape."""
        handle = data.handle
        if handle is not None and not isinstance(handle, (bool, int, float, complex)):
            handle = self.to_host(handle)
            # A layout in which elements share memory cannot be written; its values are the same in a dense one.
            if handle.stride() != data.shape.strides and 0 not in data.shape.strides:
                handle = torch.empty_strided(handle.shape, data.shape.strides, dtype=handle.dtype).copy_(handle)
        as_host = BackendData(data.device, data.shape, handle)
        as_host.error = data.error
        return self.host.make_tensor_from_computation_data(as_host, logical_scalar_type)

    # -- devices: the CPU, unless a subclass knows more -----------------------------------------------------------

    def get_default_device_type(self) -> BackendDeviceType:
        """The CPU."""
        return _CPU

    def set_default_device_type(self, type: BackendDeviceType) -> None:
        """Takes the CPU only."""
        if type != _CPU:
            raise ValueError(f"{self.__class__.__name__} has no {type} here; it has CPU")

    def get_default_device_ordinal(self) -> int:
        """The first."""
        return 0

    def set_default_device_ordinal(self, ordinal: int) -> None:
        """Takes the first only."""
        if ordinal != 0:
            raise ValueError(f"there is no CPU device {ordinal}: there is only 0")

    def eager_fallback_device_type(self) -> BackendDeviceType:
        """The CPU."""
        return _CPU

    def get_backend_devices(self) -> list[BackendDevice]:
        """The CPU."""
        return [BackendDevice(_CPU)]

    def get_backend_device(self, device: torch.device) -> BackendDevice:
        """The CPU, for the first device."""
        if device.index:
            raise ValueError(f"{device} does not exist: {type(self).__name__} has 1 device here")
        return BackendDevice(_CPU)

    # -- looking inside -----------------------------------------------------------------------------------------

    def cache_key(self) -> str:
        """The backend's class, its options, and the version of torch."""
        return f"{super().cache_key()} {self.options!r} torch {torch.__version__}"

    def get_computation_backend_text(self, computation: Computation) -> str:
        """What the compiler made of it, where it tells; else the graph's text."""
        return (isinstance(computation, CompiledComputation) and computation.current.text) or computation.text

    def get_metrics(self) -> Mapping[str, float]:
        """How many computations the interpreter runs in the compiler's place."""
        return {"fallbacks": len(self.fallbacks)}
