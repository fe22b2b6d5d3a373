"""What PyTorch's own tests of its delegates (test/jit/test_backends.py) check, in this API.

Where each behaviour is checked:

- several methods, each equal to the module's: here; their signatures: test_to_backend.py
- a method's options are the same after loading: here
- a backend that is missing, from lowering to loading: here, in one go; cell by cell: test_availability.py and
  test_saved_files.py::test_loading_where_the_backend_is_missing
- a lowered module as a submodule: test_nesting.py, and its file in
  test_saved_files.py::test_selective_and_nested_lowering_come_back; several levels, other methods than forward, and an
  inner backend that is missing: here
- selective lowering by name: test_to_backend.py; submodules that are called past their parents, shared ones, and ones
  of the same name: here
- errors of selective lowering: test_to_backend.py::test_wrong_submodules_are_all_listed; of what is no module: here
  (PyTorch also refuses two submodules of one class, which can be lowered here)
- an operator that is not supported, with its line in the source: test_partitioning.py; which line it is: here
- two lowered submodules of one class in one module: here
- attributes added after lowering survive saving: test_saved_files.py; tensors, weights that were replaced, and what
  cannot be saved: test_changes_after_lowering.py
- the names of methods are stable over saving, loading and saving: here, for modules of all kinds
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aot.subjects import Block, Cache, Nested, Scaled, Switched, Tied, again, registered, spec_of
from runtime.files import members_of
from torchport.aot.compile_spec import CompileSpec
from torchport.aot.lowered_module import LoweredModule
from torchport.aot.restoring import load
from torchport.aot.to_backend import to_backend
from torchport.errors import (
    BackendNotAvailableError,
    CompileSpecError,
    UnsupportedNodesError,
)

X, H = torch.randn(5), torch.randn(5)


class Sums(nn.Module):
    """Three methods, one of which calls the other two."""

    def forward(self, x, h):
        return self.plus(x, h), self.minus(x, h)

    def plus(self, x, h):
        return x + h

    def minus(self, x, h):
        return x - h


class Holds(nn.Module):
    """Another module, and a call of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x, h):
        return self.inner(x, h)


class Three(nn.Module):
    """Three modules of one class, each with a submodule of the same name; the first one's is called past its parent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (Holds(Scaled()) for _ in range(3))

    def forward(self, x, h):
        return self.first.inner(x, h) + self.second(x, h) + self.third(x, h)


def all_methods(options: Callable[[str], dict[str, Any]] = lambda name: {}) -> dict[str, CompileSpec]:
    return {name: CompileSpec((X, H), options=options(name)) for name in ("plus", "minus", "forward")}


def test_each_of_several_methods_is_the_modules_before_and_after_saving(tmp_path: Path) -> None:
    module = Sums()
    with registered("switched", Switched()) as backend:
        lowered = to_backend("switched", module, all_methods(lambda name: {"for": name, "level": [1, 2.5, None]}))
        told = dict(backend.options)
        loaded = again(lowered, tmp_path)
        assert told == {f"{name}.p0": loaded._methods[name].options for name in loaded.methods}
    for one in (lowered, loaded):
        assert ("plus", "minus", "forward") == one.methods
        for name in one.methods:
            torch.testing.assert_close(getattr(one, name)(X, H), getattr(module, name)(X, H), rtol=0, atol=0)
            torch.testing.assert_close(getattr(one, name)(h=H, x=X), getattr(module, name)(X, H), rtol=0, atol=0)


def test_options_are_what_they_were_when_a_target_compiles(tmp_path: Path) -> None:
    class Remembers(Switched):
        def compile(self, processed, method_compile_spec):
            self.told = {name: None if o is None else dict(o) for name, o in method_compile_spec.items()}
            return super().compile(processed, method_compile_spec)

    host, target = Remembers(), Remembers()
    with registered("remembers", host):
        to_backend("remembers", Sums(), all_methods(lambda name: {"for": name})).save(tmp_path / "m.tport")
    with registered("remembers", target):
        load(tmp_path / "m.tport")
    assert {"plus.p0": {"for": "plus"}, "minus.p0": {"for": "minus"}, "forward.p0": {"for": "forward"}} == target.told
    assert host.told == target.told


def test_a_missing_backend_lowers_and_saves_and_neither_runs_nor_loads(tmp_path: Path) -> None:
    backend = Switched()
    backend.can_compile = backend.can_execute = False
    with registered("absent", backend):
        with pytest.warns(UserWarning, match="Backend not available here: 'absent': it cannot compile and execute"):
            lowered = to_backend("absent", Sums(), all_methods())
        for name in lowered.methods:
            with pytest.raises(BackendNotAvailableError, match=rf"^Backend not available: 'absent': {name}\.p0 cannot"):
                getattr(lowered, name)(X, H)
        lowered.save(tmp_path / "m.tport")
        with pytest.raises(BackendNotAvailableError, match=r"^Backend not available: 'absent': it cannot compile and"):
            load(tmp_path / "m.tport")
        assert ["preprocess"] == backend.calls
        with pytest.raises(BackendNotAvailableError):
            lowered(X, H)
        backend.can_compile = backend.can_execute = True
        torch.testing.assert_close(load(tmp_path / "m.tport")(X, H), Sums()(X, H))


def test_lowered_modules_inside_lowered_modules_come_back(tmp_path: Path) -> None:
    module = Holds(Holds(Scaled()))
    with registered("inside", Switched()) as inside, registered("between", Switched()):
        innermost = to_backend("inside", module.inner.inner, spec_of(X, H))
        between = to_backend("between", Holds(innermost), spec_of(X, H))
        lowered = to_backend("interpreter", Holds(between), spec_of(X, H))
        loaded = again(lowered, tmp_path)
        for one in (innermost, between, lowered, loaded):
            before = inside.calls.count("execute")
            torch.testing.assert_close(one(X, H), module(X, H).detach())
            assert inside.calls.count("execute") == before + 1
        assert ["inner.inner.scale"] == list(loaded.state_dict())


def test_any_method_of_an_inner_module_can_be_called(tmp_path: Path) -> None:
    class Calls(Holds):
        def forward(self, x, h):
            return self.inner.plus(x, self.inner.minus(x, h)), self.inner(x, h)

    with registered("inside", Switched()) as inside:
        lowered = to_backend("interpreter", Calls(to_backend("inside", Sums(), all_methods())), spec_of(X, H))
        for one in (lowered, again(lowered, tmp_path)):
            torch.testing.assert_close(one(X, H), Calls(Sums())(X, H))
        assert inside.calls.count("execute") == 6


def test_an_inner_backend_that_is_missing_is_the_one_that_is_named(tmp_path: Path) -> None:
    absent = Switched()
    absent.can_execute = False
    with registered("absent", absent), registered("there", Switched()):
        with pytest.warns(UserWarning, match="Backend not available here: 'absent'"):
            inner = to_backend("absent", Scaled(), spec_of(X, H))
        lowered = to_backend("there", Holds(inner), spec_of(X, H))
        with pytest.raises(BackendNotAvailableError, match=r"'absent': forward\.inner0\.p0 cannot run: it cannot exec"):
            lowered(X, H)
        lowered.save(tmp_path / "m.tport")
        with pytest.raises(BackendNotAvailableError, match="'absent': it cannot execute here"):
            load(tmp_path / "m.tport")
        absent.can_execute = True
        torch.testing.assert_close(load(tmp_path / "m.tport")(X, H), inner_result(inner))


def inner_result(inner: nn.Module) -> torch.Tensor:
    return (torch.sin(X * inner.scale) + H).detach()


def test_submodules_of_one_name_are_lowered_each_by_its_path(tmp_path: Path) -> None:
    module = Three()
    before = {name: type(m) for name, m in module.named_modules()}
    with registered("switched", Switched()) as backend:
        lowered = to_backend("switched", module, spec_of(X, H), submodules=["first.inner", "second.inner"])
        for one in (lowered, again(lowered, tmp_path)):
            backend.calls.clear()
            torch.testing.assert_close(one(X, H), module(X, H).detach())
            assert ["execute", "execute"] == backend.calls
            assert "forward: 6 of 11 nodes in 2 parts run on switched" in one.explain()
        assert {"first.inner.scale", "second.inner.scale", "third.inner.scale"} == set(lowered.state_dict())
        for path in ("first.inner", "second.inner", "third.inner"):
            torch.testing.assert_close(
                lowered.get_parameter(f"{path}.scale").data, module.get_parameter(f"{path}.scale")
            )
    assert before == {name: type(m) for name, m in module.named_modules()}


def test_a_submodule_under_two_names_is_lowered_by_either() -> None:
    module = Three()
    module.second.inner = module.first.inner
    with registered("switched", Switched()) as backend:
        for name in ("first.inner", "second.inner"):
            lowered = to_backend("switched", module, spec_of(X, H), submodules=[name])
            backend.calls.clear()
            torch.testing.assert_close(lowered(X, H), module(X, H).detach())
            assert backend.calls
            assert set(backend.calls) == {"execute"}


def test_what_is_no_module_is_not_lowered() -> None:
    with pytest.raises(CompileSpecError, match=r"a function cannot be lowered; give a torch\.nn\.Module"):
        to_backend("interpreter", lambda x: x, spec_of(X))  # type: ignore[arg-type]
    module = Holds(Scaled())
    module.threshold = 3
    for name in ("threshold", "inner.scale", "inner.forward", ""):
        with pytest.raises(CompileSpecError, match=rf"'{name}' is no submodule"):
            to_backend("interpreter", module, spec_of(X, H), submodules=[name])


def test_an_operator_that_is_not_supported_is_named_with_the_very_line() -> None:
    class Multiplies(nn.Module):
        def forward(self, x, h):
            y = x + h
            return y * h

    backend = Switched()
    backend.refuses = lambda node: "mul" in node.call.name
    lines, first = inspect.getsourcelines(Multiplies.forward)
    line = first + next(i for i, text in enumerate(lines) if "y * h" in text)
    with registered("switched", backend), pytest.raises(UnsupportedNodesError) as raised:
        to_backend("switched", Multiplies(), spec_of(X, H), partition=False)
    assert f"aten.mul.Tensor at {__file__}:{line}: it was told so" in str(raised.value)
    assert "aten.add" not in str(raised.value)
    assert "1 of 2 nodes" in str(raised.value)


def test_two_lowered_modules_of_one_class_are_two(tmp_path: Path) -> None:
    class Both(nn.Module):
        def __init__(self, left: nn.Module, right: nn.Module) -> None:
            super().__init__()
            self.left, self.right = left, right

        def forward(self, a, b, s: int):
            return s * (self.left(a, b) * self.right(a, b))

    module = Both(Scaled(), Scaled())
    left, right = (to_backend("interpreter", m, spec_of(X, H)) for m in (module.left, module.right))
    plain = Both(left, right)
    torch.testing.assert_close(plain(X, H, 3), module(X, H, 3).detach())
    lowered = to_backend("interpreter", plain, spec_of(X, H, 3))
    for one in (lowered, again(lowered, tmp_path)):
        torch.testing.assert_close(one(X, H, 3), module(X, H, 3).detach())


def _nested() -> LoweredModule:
    batch = torch.export.Dim("batch", min=2, max=64)
    specs = {
        "only": CompileSpec((torch.ones(2),)),
        "forward": CompileSpec((torch.randn(3, 4),), {"scale": 3.0}, {"x": {0: batch}, "scale": None}),
    }
    return to_backend("interpreter", Nested().eval(), specs)


def _two_methods() -> LoweredModule:
    tokens = torch.randint(0, 50, (5,))
    specs = {name: CompileSpec((tokens,), options={"b": 1, "a": [2]}) for name in ("forward", "encode")}
    return to_backend("interpreter", Tied().eval(), specs, fallback="interpreter")


def _with_state() -> LoweredModule:
    lowered = to_backend("interpreter", Cache().eval(), spec_of(torch.randn(4)))
    lowered(torch.randn(4))
    lowered.version = {"b": 1, "a": None}
    lowered.register_buffer("example", torch.arange(3))
    return lowered


def _selective() -> LoweredModule:
    return to_backend("interpreter", Three(), spec_of(X, H), submodules=["second", "first.inner"])


def _inside() -> LoweredModule:
    class Between(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return torch.sin(self.inner(x))

    inner = to_backend("interpreter", Block().eval(), spec_of(torch.randn(3, 6)))
    return to_backend("interpreter", Between(inner).eval(), spec_of(torch.randn(3, 6)))


@pytest.mark.parametrize("make", [_nested, _two_methods, _with_state, _selective, _inside])
def test_what_is_loaded_saves_the_same_members(make: Callable[[], LoweredModule], tmp_path: Path) -> None:
    lowered = make()
    lowered.save(tmp_path / "first.tport")
    load(tmp_path / "first.tport").save(tmp_path / "second.tport")
    first, second = members_of(tmp_path / "first.tport"), members_of(tmp_path / "second.tport")
    assert list(first) == list(second)
    for name in first:
        assert first[name] == second[name], name
    assert (tmp_path / "first.tport").read_bytes() == (tmp_path / "second.tport").read_bytes()
    loaded = load(tmp_path / "second.tport")
    assert lowered.methods == loaded.methods
    assert list(lowered.state_dict()) == list(loaded.state_dict())
    assert lowered.own_attributes() == loaded.own_attributes()
