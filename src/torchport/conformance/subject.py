"""The backend that is tried: the contract's methods, in the order in which the runtime calls them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from torchport.backend import (
    DONATED,
    Availability,
    BackendData,
    BackendDevice,
    BackendImplInterface,
    Capabilities,
    Computation,
    DelegatedModule,
    PyTorchBackendInterface,
    Shape,
    default_registry,
)
from torchport.backend.delegates import delegate_availability, find_delegate, is_delegate
from torchport.backend.registration import is_delegate_only
from torchport.config import settings
from torchport.conformance.case import NotApplicable, Violation, require
from torchport.errors import BackendNotAvailableError, UnknownBackendError
from torchport.ir.graph import Graph
from torchport.ir.node import Value
from torchport.lazy.switch import use


class Subject:
    """A backend by its name.

    Args:
        name: as it is registered.

    Raises:
        UnknownBackendError: there is no backend of that name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        registry = default_registry()
        self.lowers_only = is_delegate(name) or is_delegate_only(registry.installed_object(name))
        if not self.lowers_only and name not in registry.names():
            raise UnknownBackendError(name, registry.names())

    @cached_property
    def availability(self) -> Availability:
        """Whether it can be used here."""
        return delegate_availability(self.name) if self.lowers_only else default_registry().availability(self.name)

    @cached_property
    def backend(self) -> BackendImplInterface:
        """The backend of the lazy device."""
        return default_registry().registration(self.name).instance

    @cached_property
    def delegate(self) -> PyTorchBackendInterface:
        """What lowers modules.

        Raises:
            NotApplicable: it runs the lazy device only.
        """
        try:
            return find_delegate(self.name).instance
        except BackendNotAvailableError as error:
            if not self.lowers_only and self.backend.delegate() is None:
                raise NotApplicable("it runs the lazy device only: its delegate() is None") from error
            raise

    @property
    def owner(self) -> type:
        """The class that the backend is an instance of."""
        return type(self.delegate if self.lowers_only else self.backend)

    @property
    def capabilities(self) -> Capabilities:
        """What it declares."""
        return Capabilities() if self.lowers_only else self.backend.capabilities

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """The backend is the active one inside, and the one from before afterwards."""
        if self.lowers_only:
            yield
            return
        before = default_registry().active_name
        use(self.name)
        try:
            yield
        finally:
            if before is not None:
                use(before)

    # -- the lazy interface, as the runtime calls it --------------------------------------------------------------

    @property
    def device(self) -> BackendDevice:
        """The concrete device behind the first virtual one."""
        return self.backend.get_backend_device(torch.device(settings.device_name, 0))

    def upload(self, tensor: torch.Tensor) -> BackendData:
        """Data of a host tensor."""
        shape = Shape(tensor.dtype, tuple(tensor.shape), tensor.stride())
        return self.backend.make_computation_data_from_tensor(tensor, shape, self.device)

    def download(self, data: BackendData) -> torch.Tensor:
        """The host tensor of data."""
        return self.backend.make_tensor_from_computation_data(data)

    def compile(
        self, graph: Graph, results: Sequence[Value] | None = None, aliases: Mapping[int, int] | None = None
    ) -> Computation:
        """A graph, lowered and compiled.

        Raises:
            NotApplicable: the backend refuses one of its nodes.
        """
        for node in graph.nodes:
            if not node.is_device_data:
                answer = self.backend.supports(node)
                if not answer:
                    raise NotApplicable(f"the backend refuses {node.call.name}: {answer.reason}")
        context = self.backend.create_lowering_context("conformance", self.device, graph.nodes)
        for value in graph.results if results is None else results:
            context.add_result(value)
        for result, parameter in (aliases or {}).items():
            context.set_up_alias(result, parameter)
        compiled = self.backend.compile([context.build()])
        require(len(compiled) == 1, f"compile() was given 1 computation and returned {len(compiled)}")
        return compiled[0]

    def execute(
        self,
        computation: Computation,
        arguments: Sequence[BackendData],
        numbers: Sequence[Any] = (),
        donated: Sequence[int] = (),
    ) -> list[BackendData]:
        """The results of a compiled computation."""
        given = [*arguments, *(self.backend.make_computation_data_from_scalar(n, self.device) for n in numbers)]
        for i in donated:
            given[i].info = DONATED
        try:
            return self.backend.execute_computation(computation, given, self.device)
        finally:
            for i in donated:
                given[i].info = None

    def run(self, graph: Graph, numbers: Sequence[Any] | None = None) -> list[torch.Tensor]:
        """The results of a graph with the data and numbers that it holds, on the host."""
        computation = self.compile(graph)
        own = [node.numbers[i] for node, i in graph.numbers]
        results = self.execute(computation, [n.data for n in graph.parameters], own if numbers is None else numbers)
        return [self.download(data) for data in checked(results, computation)]

    # -- the delegate interface, as lowering calls it --------------------------------------------------------------

    def processed(self, graphs: Mapping[str, Graph]) -> Mapping[str, bytes]:
        """What is saved of graphs.

        Raises:
            NotApplicable: the delegate refuses one of their nodes.
        """
        for graph in graphs.values():
            for node in graph.nodes:
                if not node.is_device_data:
                    answer = self.delegate.supports(node)
                    if not answer:
                        raise NotApplicable(f"the delegate refuses {node.call.name}: {answer.reason}")
        return find_delegate(self.name).preprocess(DelegatedModule(graphs), dict.fromkeys(graphs))

    def lowered(self, graphs: Mapping[str, Graph]) -> dict[str, Any]:
        """Handles of graphs, compiled on this machine."""
        return self.delegate.compile(self.processed(graphs), dict.fromkeys(graphs))


def checked(results: Sequence[BackendData], computation: Computation) -> Sequence[BackendData]:
    """The results, which are as many as were asked for and have values.

    Raises:
        Violation: they are not, or have none.
        Exception: the error that one of them has.
    """
    wanted = len(computation.graph.results)
    require(len(results) == wanted, f"execute_computation() returned {len(results)} data for {wanted} results")
    for i, data in enumerate(results):
        if data.error is not None:
            raise data.error
        if not data.has_value:
            raise Violation(f"result {i} has no value after execute_computation() returned: {data!r}")
    return results
