"""A lowered module does what the module does, with the same signature, and leaves the module alone."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

import torchport
from aot.subjects import Blocks, Cache, Nested, Pair, Switched, Tied, registered, spec_of
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.function import Function, as_graph_function, try_as_graph_function
from torchport.aot.to_backend import to_backend
from torchport.errors import CaptureError, CompileSpecError, InvalidArgumentError, UnknownBackendError


def equal(wanted: object, got: object) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)
    assert type(got) is type(wanted)


@pytest.fixture
def nested() -> Nested:
    torch.manual_seed(0)
    return Nested().eval()


def lowered_nested(module: Nested):
    batch = torch.export.Dim("batch", min=2, max=64)
    extra = {"bias": torch.zeros(8)}
    return to_backend(
        "interpreter",
        module,
        {
            "forward": CompileSpec(
                (torch.randn(3, 4), extra), {"scale": 3.0}, {"x": {0: batch}, "extra": {"bias": {}}, "scale": None}
            ),
            "only": CompileSpec((torch.ones(2),)),
        },
    )


def test_nested_arguments_and_results_come_back_exactly(nested: Nested) -> None:
    lowered = lowered_nested(nested)
    reference = copy.deepcopy(nested)
    for n in (2, 3, 7):
        x, extra = torch.randn(n, 4), {"bias": torch.randn(8)}
        wanted = reference(x, extra, scale=3.0)
        got = lowered(x, extra=extra, scale=3.0)
        torch.testing.assert_close(got[0]["y"], wanted[0]["y"])
        assert list(got[0]) == ["y", "rest"]
        assert got[0]["rest"][:2] == (None, 3)
        assert got[0]["rest"][3] == "a"
        assert type(got[0]["rest"][2]) is list
        assert type(got[1]) is tuple
        equal(wanted[1], got[1])
        assert type(got[2]) is Pair
        assert got[2].second == 2 * n
        torch.testing.assert_close(got[2].first, wanted[2].first)


def test_each_method_has_its_signature(nested: Nested) -> None:
    lowered = lowered_nested(nested)
    assert inspect.signature(lowered.forward) == inspect.signature(nested.forward)
    assert inspect.signature(lowered.only) == inspect.signature(nested.only)
    assert lowered.methods == ("forward", "only")
    equal((torch.full((2,), 2.0),), lowered.only(torch.ones(2)))
    equal((torch.full((2,), 2.0),), lowered.only(torch.ones(2), b=1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x, e: m(x, e, scale=4.0), "it was 3.0 when the method was captured"),
        (lambda m, x, e: m(x, e, scale=3.0, flag="b"), "flag='b' was not given when the method was captured"),
        (lambda m, x, e: m(x, scale=3.0), "captured with arguments of the form"),
        (lambda m, x, e: m(x[:1], e, scale=3.0), "batch from 2 to 64"),
        (
            lambda m, x, e: m(x.double(), e, scale=3.0),
            r"f64\[3, 4\] on cpu; the method was captured for f32\[batch, 4\]",
        ),
        (lambda m, x, e: m(x[:, :3], e, scale=3.0), r"f32\[3, 3\] on cpu"),
        (lambda m, x, e: m(3, e, scale=3.0), "input 0 is a int; a tensor"),
        (lambda m, x, e: m(x, e, scale=3.0, no=1), "unexpected keyword argument 'no'"),
        (lambda m, x, e: m(), "missing a required argument: 'x'"),
        (lambda m, x, e: m.only(torch.ones(2), 5), "b=5 was not given"),
    ],
)
def test_arguments_that_do_not_fit_are_an_error_that_says_why(nested: Nested, call, message: str) -> None:
    lowered = lowered_nested(nested)
    calls = lowered.calls.clone()
    with pytest.raises(InvalidArgumentError, match=message):
        call(lowered, torch.randn(3, 4), {"bias": torch.zeros(8)})
    assert torch.equal(calls, lowered.calls)


def test_the_module_is_left_alone_and_changes_to_it_do_not_reach_the_lowered_one(nested: Nested) -> None:
    before = copy.deepcopy(nested.state_dict())
    lowered = lowered_nested(nested)
    lowered(torch.randn(3, 4), {"bias": torch.zeros(8)}, scale=3.0)
    equal(before, nested.state_dict())
    wanted = lowered.linear.weight.clone()
    with torch.no_grad():
        nested.linear.weight.zero_()
    equal(wanted, lowered.linear.weight.data.clone())


def test_a_cache_stays_state(nested: Nested) -> None:
    module = Cache().eval()
    lowered = to_backend("interpreter", module, spec_of(torch.randn(4)))
    reference = copy.deepcopy(module)
    for _ in range(3):
        x = torch.randn(4)
        with torch.no_grad():
            torch.testing.assert_close(lowered(x), reference(x))
    equal(reference.keys, lowered.keys)
    assert int(lowered.position) == 3


def test_tied_weights_stay_tied_and_are_there_once() -> None:
    module = Tied().eval()
    tokens = torch.randint(0, 50, (5,))
    lowered = to_backend("interpreter", module, {"forward": CompileSpec((tokens,)), "encode": CompileSpec((tokens,))})
    assert len(list(lowered.parameters())) == 1
    torch.testing.assert_close(lowered(tokens), module(tokens).detach())
    torch.testing.assert_close(lowered.encode(tokens), module.encode(tokens).detach())


def test_an_input_that_the_method_writes_to_is_written_to() -> None:
    class Writes(nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x + 1

    lowered = to_backend("interpreter", Writes(), spec_of(torch.ones(3)))
    x = torch.ones(3)
    equal(torch.full((3,), 3.0), lowered(x))
    equal(torch.full((3,), 2.0), x)


def test_the_other_mode_warns_once(nested: Nested) -> None:
    lowered = lowered_nested(nested)
    lowered.train()
    arguments = (torch.randn(3, 4), {"bias": torch.zeros(8)})
    with pytest.warns(UserWarning, match="captured in evaluation mode"):
        lowered(*arguments, scale=3.0)
    lowered(*arguments, scale=3.0)


def test_results_are_the_callers_own(nested: Nested) -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x, self.weight, x[:2]

    lowered = to_backend("interpreter", Same(), spec_of(torch.ones(3)))
    x = torch.ones(3)
    for result in lowered(x):
        result.zero_()
    equal(torch.ones(3), x)
    equal(torch.ones(3), lowered.weight.data)


def test_exported_programs_and_their_files_are_lowered(tmp_path) -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    program = torch.export.export(module, (x,))
    torch.export.save(program, tmp_path / "blocks.pt2")
    for source in (program, tmp_path / "blocks.pt2", str(tmp_path / "blocks.pt2")):
        torch.testing.assert_close(to_backend("interpreter", source)(x), module(x).detach())
    with pytest.raises(CompileSpecError, match="was captured already"):
        to_backend("interpreter", program, spec_of(x))


def test_a_torchscript_module_is_converted_with_a_note() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.script"):
        scripted = torch.jit.script(module)
    with pytest.warns(DeprecationWarning, match="TorchScript is deprecated"):
        lowered = to_backend("interpreter", scripted, spec_of(torch.randn(2, 3)))
    x = torch.randn(2, 3)
    torch.testing.assert_close(lowered(x), module(x).detach())


def test_only_the_named_submodules_are_lowered() -> None:
    module = Blocks().eval()
    x = torch.randn(3, 6)
    with registered("switched", Switched()):
        lowered = to_backend("switched", module, spec_of(x), submodules=["second"])
        torch.testing.assert_close(lowered(x), module(x).detach())
        text = lowered.explain()
        assert "1 parts run on switched" in text
        assert "it is in none of the submodules that are lowered" in text
        both = to_backend("switched", module, spec_of(x), submodules=["first", "second"])
        torch.testing.assert_close(both(x), module(x).detach())
        assert "2 parts run on switched" in both.explain()


def test_a_method_is_a_function_and_its_graph_is_asked_for() -> None:
    lowered = to_backend("interpreter", Blocks().eval(), spec_of(torch.randn(3, 6)))
    function: Function = lowered.forward
    assert function.name == "forward"
    assert "port.partition" in str(as_graph_function(function).graph)
    assert try_as_graph_function(len) is None
    with pytest.raises(InvalidArgumentError, match="has no graph; methods of a LoweredModule have one"):
        as_graph_function(len)


def test_what_torch_export_asserts_of_dtypes_reaches_no_backend() -> None:
    class Converts(nn.Module):
        def forward(self, x, unused):
            return x.to(torch.float64) + x.long().to(torch.bool), unused.to(torch.float32)

    assert "_assert_tensor_metadata" in str(torch.export.export(Converts(), (torch.ones(3), torch.ones(2))).graph)
    lowered = to_backend("interpreter", Converts(), spec_of(torch.ones(3), torch.ones(2)))
    graph = as_graph_function(lowered.forward).graph
    assert ["port.partition"] == [n.call.name for n in graph.nodes if not n.is_device_data]
    assert "_assert" not in bytes(lowered._methods["forward"].parts["p0"].payload).decode()
    equal(Converts()(torch.ones(3), torch.ones(2)), lowered(torch.ones(3), torch.ones(2)))


def test_options_reach_the_backend() -> None:
    with registered("switched", Switched()) as backend:
        to_backend("switched", Blocks(), {"forward": CompileSpec((torch.randn(3, 6),), options={"level": 3})})
        assert {"forward.p0": {"level": 3}} == backend.options


def test_what_cannot_be_captured_says_so_with_its_cause() -> None:
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(CaptureError, match=r"Branches\.forward cannot be captured by torch\.export") as raised:
        to_backend("interpreter", Branches(), spec_of(torch.ones(3)))
    assert raised.value.__cause__ is not None


def test_every_mistake_in_a_compile_spec_is_listed() -> None:
    with pytest.raises(CompileSpecError) as raised:
        to_backend(
            "interpreter",
            Nested(),
            {
                "forwrad": CompileSpec(),
                "only": 3,  # type: ignore[dict-item]
                "forward": CompileSpec(torch.ones(3), kwargs=[1]),  # type: ignore[arg-type]
                "not a name": CompileSpec(),
            },
        )
    text = str(raised.value)
    for part in (
        "'forwrad': Nested has no such method; it has forward, only",
        "'only': a CompileSpec is wanted, not int",
        "'forward': args is a Tensor, not a tuple",
        "'forward': kwargs is no mapping of names",
        "'not a name' is no name of a method",
        'Give a dict of method names: {"forward": CompileSpec(',
    ):
        assert part in text


@pytest.mark.parametrize("specs", [{}, None, [1]])
def test_a_compile_spec_that_is_none_is_refused(specs: object) -> None:
    with pytest.raises(CompileSpecError, match="Give a dict of method names"):
        to_backend("interpreter", Blocks(), specs)  # type: ignore[arg-type]


def test_wrong_submodules_are_all_listed() -> None:
    with pytest.raises(CompileSpecError) as raised:
        to_backend("interpreter", Blocks(), spec_of(torch.randn(3, 6)), submodules=["third", "first", "first.up", "up"])
    text = str(raised.value)
    assert "'third' is no submodule" in text
    assert "'first.up' is inside another submodule that is lowered" in text
    assert "'up' is no submodule; did you mean 'first.up', 'second.up'?" in text


def test_an_unknown_backend_lists_those_that_there_are() -> None:
    with pytest.raises(UnknownBackendError, match=r"Did you mean 'interpreter'\? Registered here: .*interpreter"):
        to_backend("interpretr", Blocks(), spec_of(torch.randn(3, 6)))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], *, z: torch.Tensor) -> torch.Tensor:
        return x + 10 * pair[0] + 100 * pair[1] + 1000 * z + 10000 * self.weight


def test_one_example_given_for_several_inputs_leaves_them_several() -> None:
    module = Shared()
    one = module.weight
    spec = torchport.CompileSpec((one, (one, one)), {"z": one})
    lowered = torchport.to_backend("interpreter", module, {"forward": spec})
    x, a, b, z = (torch.full((3,), float(i)) for i in range(2, 6))
    torch.testing.assert_close(lowered(x, (a, b), z=z), module(x, (a, b), z=z).detach())


def test_an_exported_program_takes_options_and_nothing_else() -> None:
    program = torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),))
    spec = torchport.CompileSpec(options={"threads": 2})
    lowered = torchport.to_backend("interpreter", program, {"forward": spec})
    torch.testing.assert_close(lowered(input=torch.ones(3, 4)), program.module()(torch.ones(3, 4)).detach())
    for wrong in ({"forward": torchport.CompileSpec((torch.ones(3, 4),))}, {"other": spec}):
        with pytest.raises(torchport.CompileSpecError, match="was captured already"):
            torchport.to_backend("interpreter", program, wrong)
