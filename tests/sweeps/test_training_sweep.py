"""A program that ends on the device otherwise than on the CPU is found; modules are made and called as a mode says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sweeps.module_modes import MODULE_MODES
from sweeps.more_modules import MORE_MODULES
from sweeps.optimizer_program import SAVED_AFTER, STEPS, inputs_of, run_optimizer
from sweeps.programs import DEVICE, Outcome, compared
from sweeps.records import SampleRecord, Status
from sweeps.suites import OPTIMIZERS_SUITE
from torchport.config import settings


def there(device: str) -> bool:
    return torch.device(device).type == settings.device_name


def values(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.linspace(0.1, 1.0, 8, dtype=dtype, device=device)


def raising(device: str) -> Outcome:
    raise ValueError(f"refused on {device}")


def raising_there(device: str) -> Outcome:
    return raising(device) if there(device) else Outcome({"x": values(device)})


FAULTS: dict[str, tuple[Callable[[str], Outcome], Status, str]] = {
    "none": (lambda d: Outcome({"x": values(d)}, {"state": [values("cpu"), 3]}), Status.PASS, ""),
    "refused by the CPU": (raising, Status.SKIP, "refused on cpu"),
    "raises": (raising_there, Status.EXCEPTION, f"refused on {DEVICE}"),
    "other values": (lambda d: Outcome({"x": values(d) + there(d)}), Status.WRONG, "x: AssertionError"),
    "other numbers": (lambda d: Outcome(host={"n": [1 + there(d)]}), Status.WRONG, "n: AssertionError"),
    "other results": (lambda d: Outcome({f"x{there(d)}": values(d)}), Status.EXCEPTION, "['xFalse'] wanted"),
    "on the host": (lambda d: Outcome({"x": values("cpu")}), Status.META, f"device {DEVICE} wanted, got cpu"),
    "a gradient": (
        lambda d: Outcome({"x": values(d).requires_grad_(there(d))}),
        Status.META,
        "requires_grad False wanted, got True",
    ),
    "compiled late": (lambda d: Outcome(compiles=[1, 1, 1, 1]), Status.COMPILES, "[1, 1, 1, 1]"),
    "compiled early": (lambda d: Outcome(compiles=[1, 1, 1, 0]), Status.PASS, ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_kind_of_fault_of_a_program_is_found(name: str) -> None:
    program, status, error = FAULTS[name]
    record = compared(0, program)
    assert (status, True) == (record.status, error in record.error), record


def test_what_is_compiled_after_loading_is_noted_and_other_strides_are() -> None:
    record = compared(0, lambda d: Outcome(compiles_after_loading=[0, 1]))
    assert (Status.PASS, True) == (record.status, "[0, 1]" in record.reloading)
    assert not compared(0, lambda d: Outcome(compiles_after_loading=[0, 0])).reloading
    record = compared(0, lambda d: Outcome({"x": torch.ones(8, device=d)[:: 2 if there(d) else 1][:4]}))
    assert "stride (1,) wanted, got (2,)" in record.layout


def test_a_reference_decides_only_about_what_it_is_of() -> None:
    def program(device: str, off: float = 0.0) -> Outcome:
        # The CPU's result is a little off, and the device's is as much on the other side.
        return Outcome({"x": values(device) + (off if there(device) else -off)})

    exact = lambda d: Outcome({"x": values(d, torch.float64)})  # noqa: E731
    assert compared(0, lambda d: program(d, 1e-4)).status is Status.WRONG
    record = compared(0, lambda d: program(d, 1e-4), exact)
    assert (Status.PASS, True) == (record.status, "from the result in double precision" in record.rounding)
    other = lambda d: Outcome({"x": values(d, torch.float64) + 7})  # noqa: E731
    assert compared(0, lambda d: program(d, 1e-4), other).status is not Status.PASS


def mode_inputs(mode: str, name: str) -> list[Any]:
    return MODULE_MODES[mode].inputs(next(m for m in MORE_MODULES if m.name == name), torch.float32)


def test_a_mode_lays_out_what_is_handed_over() -> None:
    x = mode_inputs("strided", "nn.PixelShuffle")[0].forward_input.args[0]
    assert MODULE_MODES["strided"].arranged((x,))[0].stride() == tuple(2 * s for s in x.stride())
    laid_out = MODULE_MODES["channels-last"].arranged(x)
    assert laid_out.is_contiguous(memory_format=torch.channels_last)
    assert [] == mode_inputs("channels-last", "nn.Identity")


def test_a_mode_makes_the_module() -> None:
    (module_input,) = mode_inputs("channels-last", "nn.ChannelShuffle")
    convolution = nn.Conv2d(2, 3, 3)
    convolution._apply(MODULE_MODES["channels-last"].arrange_module)
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    arguments = mode_inputs("made-there", "nn.LazyLinear")[0].constructor_input
    made = MODULE_MODES["made-there"].make(nn.LazyLinear, arguments, DEVICE, torch.float64)
    assert (DEVICE, torch.float64) == (made.weight.device.type, made.weight.dtype)
    assert [] == mode_inputs("made-there", "nn.Identity")
    arguments = mode_inputs("inplace", "nn.Hardsigmoid")[0].constructor_input
    assert MODULE_MODES["inplace"].make(nn.Hardsigmoid, arguments, "cpu", torch.float32).inplace
    assert [] == mode_inputs("inplace", "nn.ChannelShuffle")
    assert (
        not MODULE_MODES["eval"].make(nn.ChannelShuffle, module_input.constructor_input, "cpu", torch.float32).training
    )


def test_an_optimizer_that_forgets_its_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    info = next(i for i in OPTIMIZERS_SUITE.subjects if i.name == "Adam")
    load = torch.optim.Adam.load_state_dict

    def forgetful(self: torch.optim.Adam, state: dict[str, Any]) -> None:
        if there(str(self.param_groups[0]["params"][0].device)):
            state = {**state, "state": {}}
        load(self, state)

    monkeypatch.setattr(torch.optim.Adam, "load_state_dict", forgetful)
    records: list[SampleRecord] = []
    run_optimizer(info, "default", torch.float32, 1, lambda index: None, records.append)
    assert [Status.WRONG] == [r.status for r in records]
    assert "after loading" in records[0].error


def test_the_inputs_of_a_mode_ask_for_its_implementation() -> None:
    assert SAVED_AFTER < STEPS
    for info in OPTIMIZERS_SUITE.subjects:
        for mode in OPTIMIZERS_SUITE.modes:
            if OPTIMIZERS_SUITE.takes_part(info, mode):
                inputs = inputs_of(info, mode)
                assert inputs
                assert {mode.startswith("capturable")} == {bool(k.get("capturable")) for k in inputs}
