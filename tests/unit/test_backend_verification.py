"""What a class gets told when it is registered and does not keep the contract."""

from __future__ import annotations

from typing import Any

import pytest

from support.eager_backend import EagerTestBackend
from torchport.backend import (
    BackendImplInterface,
    BackendRegistry,
    Capabilities,
    Computation,
    NullBackend,
    RecordingBackend,
)
from torchport.backend.verification import interface_methods, problems_of, verify_target
from torchport.backends.interpreter import InterpreterBackend
from torchport.errors import BackendRegistrationError

ABSTRACT = BackendImplInterface.__abstractmethods__


def backend(**attributes: Any) -> type[NullBackend]:
    """A sound backend with some attributes more, or other ones."""
    return type("Mine", (NullBackend,), attributes)


def without_parameters() -> list[object]:
    return []


def test_sound_backends_have_no_problems() -> None:
    for cls in (NullBackend, RecordingBackend, EagerTestBackend, InterpreterBackend, backend()):
        assert [] == problems_of(cls)


def test_the_contract_has_every_method_of_pytorchs_interface() -> None:
    # torch/csrc/lazy/backend/backend_interface.h, in Python's spelling.
    assert interface_methods().keys() >= ABSTRACT | {
        "initialize_aten_bindings",
        "prepare_to_exit",
        "set_rng_seed",
        "get_ir_builder",
        "should_sync_tensor",
        "create_data_placeholder",
        "get_computation_data_from_node",
        "create_lowering_context",
        "get_compilation_devices",
        "create_metric_report",
        "get_metrics",
        "get_computation_backend_text",
    }


# -- missing and misnamed ---------------------------------------------------------------------------------------------


def test_all_missing_methods_are_listed_at_once_with_their_signatures() -> None:
    class Empty(BackendImplInterface):
        pass

    problems = problems_of(Empty)
    assert len(problems) == len(ABSTRACT)
    assert problems[0] == "missing: compile(self, instances: list[Computation]) -> list[Computation]"
    assert (
        "missing: execute_computation(self, computation: Computation, arguments: list[BackendData], "
        "device: BackendDevice) -> list[BackendData]"
    ) in problems


@pytest.mark.parametrize(
    ("misnamed", "meant"),
    [
        ("execute_computaton", "execute_computation"),
        ("ExecuteComputation", "execute_computation"),
        ("Compile", "compile"),
        ("get_backend_devises", "get_backend_devices"),
    ],
)
def test_a_misnamed_method_that_is_missing_is_pointed_at(misnamed: str, meant: str) -> None:
    methods = {name: vars(NullBackend)[name] for name in ABSTRACT if name != meant}
    cls = type("Mine", (BackendImplInterface,), methods | {misnamed: vars(NullBackend)[meant]})
    (problem,) = problems_of(cls)
    assert problem.startswith(f"missing: {meant}(self")
    assert problem.endswith(f" (it has {misnamed}(): is that a misspelling?)")


def test_a_method_that_nobody_calls_but_looks_like_one_of_the_contract_is_reported() -> None:
    assert [
        "misspelling: create_metrics_report() is probably meant to be create_metric_report(self) -> str; "
        "a method of your own may have this name with an underscore in front"
    ] == problems_of(backend(create_metrics_report=lambda self: ""))


def test_a_misspelling_in_a_subclass_of_a_whole_backend_is_reported() -> None:
    class Derived(EagerTestBackend):
        def create_metrics_report(self) -> str:
            return ""

    assert ["misspelling: create_metrics_report()"] == [p.partition(" is probably")[0] for p in problems_of(Derived)]


def test_a_helper_is_no_misspelling_of_a_method_that_the_class_has_too() -> None:
    class Helper:
        def get_default_device(self) -> str:
            return "NULL0"

    assert [] == problems_of(type("Mine", (EagerTestBackend, Helper), {}))
    both = {"create_metrics_report": lambda self: "", "create_metric_report": lambda self: ""}
    assert [] == problems_of(backend(**both))


@pytest.mark.parametrize("name", ["compile_graph", "devices", "upload", "_compille", "metrics_of"])
def test_methods_of_its_own_are_a_backends_own_affair(name: str) -> None:
    assert [] == problems_of(backend(**{name: lambda self: None}))


def test_an_abstract_method_of_a_class_in_between_is_missing_too() -> None:
    from abc import abstractmethod

    class Between(NullBackend):
        @abstractmethod
        def compile_graph(self, graph: object) -> object: ...

    class Mine(Between):
        pass

    assert ["missing: compile_graph(self, graph: object) -> object"] == problems_of(Mine)


# -- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda self, graphs: [], "parameter 1 is `graphs`, not `instances`"),
        (lambda self: [], "it lacks the parameter `instances`"),
        (lambda self, instances, flags: [], "it requires `flags`, which the contract does not pass"),
        (lambda self, instances, *, flags: [], "it requires `flags`, which the contract does not pass"),
        (lambda self, instances, /: [], "`instances` cannot be given by name"),
        (lambda self, *instances: [], "it lacks the parameter `instances`"),
        (without_parameters, "it has no parameter `self`"),
        (staticmethod(lambda self, instances: []), "parameter 1 is `self`, not `instances`"),
        (property(lambda self: []), "it is a property, which is read and not called"),
        (["-O3"], "it is ['-O3'], which cannot be called"),
    ],
)
def test_a_wrong_signature_is_reported_with_the_expected_one(function: Any, reason: str) -> None:
    (problem,) = problems_of(backend(compile=function))
    assert problem.startswith(f"signature: compile: {reason}")
    assert problem.endswith("; expected compile(self, instances: list[Computation]) -> list[Computation]")


def test_a_default_that_callers_rely_on_must_be_there() -> None:
    cls = backend(make_tensor_from_computation_data=lambda self, data, logical_scalar_type: None)
    (problem,) = problems_of(cls)
    assert "`logical_scalar_type` has no default" in problem


def test_every_departure_of_a_signature_is_in_one_line() -> None:
    (problem,) = problems_of(backend(execute_computation=lambda self, program, arguments: []))
    assert "parameter 1 is `program`, not `computation`, it lacks the parameter `device`; expected" in problem


@pytest.mark.parametrize(
    "function",
    [
        lambda self, instances, flags=(): [],
        lambda self, instances, *, flags=(): [],
        lambda self, *args, **kwargs: [],
        lambda *args, **kwargs: [],
        classmethod(lambda cls, instances: []),
        staticmethod(lambda instances: []),
    ],
)
def test_a_signature_that_can_be_called_as_the_contract_calls_it_is_sound(function: Any) -> None:
    assert [] == problems_of(backend(compile=function))


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_a_class_that_is_not_derived_is_told_to_derive_and_what_else_it_lacks() -> None:
    class Duck:
        def compile(self, instances: list[Computation]) -> list[Computation]:
            return instances

        def get_backend_devices(self) -> list[object]:
            return []

    problems = problems_of(Duck)
    assert problems[0] == (
        "base class: it does not derive from torchport.BackendImplInterface, although it has compile(), "
        "get_backend_devices(); derive from it, defaults and checks come from there"
    )
    assert len(problems) == 1 + len(ABSTRACT) - 2


@pytest.mark.parametrize("target", [object(), "interpreter", 3, dict, None])
def test_what_is_no_backend_at_all_is_refused(target: object) -> None:
    with pytest.raises(BackendRegistrationError, match=r"does not derive from torchport\.BackendImplInterface"):
        verify_target("toy", target)


def test_capabilities_must_be_capabilities() -> None:
    (problem,) = problems_of(backend(capabilities={"training": True}))
    assert problem == "attribute: capabilities is {'training': True}; expected a torchport.backend.Capabilities"
    assert [] == problems_of(backend(capabilities=property(lambda self: Capabilities())))


def test_availability_must_be_asked_of_the_class() -> None:
    (problem,) = problems_of(backend(availability=lambda self: None))
    assert problem == "attribute: availability must be a classmethod; it is asked before there is an instance"


def test_a_class_whose_constructor_needs_arguments_is_told_what_to_register() -> None:
    class Needy(NullBackend):
        def __init__(self, address: str, *, port: int, retries: int = 3) -> None:
            super().__init__()

    with pytest.raises(BackendRegistrationError) as error:
        verify_target("toy", Needy)
    message = str(error.value)
    assert "it needs `address`, `port`; register an instance, or a factory such as `lambda: Needy(…)`" in message
    assert verify_target("toy", Needy("localhost", port=1)) is Needy


def test_the_error_names_the_backend_and_the_class_and_lists_everything() -> None:
    class Mine(NullBackend):
        capabilities = None  # type: ignore[assignment]

        def compile(self, graphs: list[Computation]) -> list[Computation]:
            return graphs

        def get_metric(self) -> dict[str, float]:
            return {}

    registry = BackendRegistry()
    with pytest.raises(BackendRegistrationError) as error:
        registry.register("toy", Mine)
    head, *lines, tail = str(error.value).splitlines()
    assert head.startswith("backend 'toy': ")
    assert head.endswith("Mine does not keep the contract of torchport.BackendImplInterface, 3 problems:")
    assert ["  signature", "  misspelling", "  attribute"] == [line.partition(":")[0] for line in lines]
    assert tail == "Correct the class and register it again."
    assert "toy" not in registry.names()


def test_an_instance_and_an_annotated_factory_are_verified_at_registration() -> None:
    bad = backend(compile=lambda self, graphs: [])

    def factory() -> NullBackend:
        return bad()

    factory.__annotations__["return"] = bad
    for target in (bad, bad(), factory):
        with pytest.raises(BackendRegistrationError, match="1 problem:\n  signature: compile"):
            verify_target("toy", target)


def test_a_factory_that_does_not_say_what_it_makes_is_verified_later() -> None:
    def unreadable() -> NullBackend:
        return NullBackend()

    unreadable.__annotations__["return"] = "NowhereDefined"
    assert verify_target("toy", unreadable) is None
    assert verify_target("toy", lambda: NullBackend()) is None
