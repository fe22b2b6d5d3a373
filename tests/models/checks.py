"""What is checked of each model: that the device gives what the CPU gives, compiles no more than it must, and computes
every operator in a graph.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import torchport
from lazy.cases.oracle import D, counter
from models.runs import (
    Options,
    Tensors,
    evaluated,
    generated,
    initialised,
    made,
    saved_and_loaded,
    trained,
)
from models.subjects import Subject

HALVES = (torch.float16, torch.bfloat16)

ERROR_MULTIPLIER = 3.0
"""How many times the CPU's own error the device's may be. Source: torch/_dynamo/utils.py, ``same``: 2, and 3 for small
tensors and low precision."""
ERROR_FLOOR = {torch.float16: 1e-4, torch.bfloat16: 1e-3, torch.float32: 1e-5}
"""What is added to that, by the lowest precision that is computed in. Source: the same, a tenth of the tolerance that
benchmarks/dynamo/common.py gives for the dtype (1e-3, 1e-2); for float32, the absolute tolerance of torch.testing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found.

    Attributes:
        bitwise: the results are the CPU's to the last bit, not only within the tolerances.
        compiles: how many graphs were compiled on the way.
        note: what else is to be said.
    """

    bitwise: bool
    compiles: int
    note: str = ""


Check = Callable[[], Outcome]


def assert_close(wanted: Tensors, got: Tensors) -> bool:
    """Within PyTorch's default tolerances for the dtypes; returns whether they are the same bits."""
    assert wanted.keys() == got.keys()
    for name, w in wanted.items():
        torch.testing.assert_close(got[name], w, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")
    return all(torch.equal(w, got[name]) for name, w in wanted.items())


def assert_as_accurate(exact: Tensors, wanted: Tensors, got: Tensors, options: Options) -> bool:
    """The device's error is about the CPU's, both against float64; returns whether they are the same bits."""
    assert wanted.keys() == got.keys()
    for name, w in wanted.items():
        g, e = got[name], exact[name]
        assert g.dtype is w.dtype, name
        own, ours = rms(w - e), rms(g - e)
        bound = ERROR_MULTIPLIER * own + ERROR_FLOOR[options.autocast or options.dtype]
        assert ours <= bound, f"{name}: an error of {ours:.2e}, where the CPU's is {own:.2e}"
    return all(torch.equal(w, got[name]) for name, w in wanted.items())


def rms(x: torch.Tensor) -> float:
    """The root of the mean of the squares."""
    return float(x.double().square().mean().sqrt())


def counted(run: Callable[[], bool]) -> Outcome:
    """Runs a comparison, counts its compiles, and asserts that no operator fell back to eager execution."""
    torchport.wait_device_ops()
    fallbacks, compiles = torchport.executed_fallback_ops(), counter("UncachedCompile")
    bitwise = run()
    torchport.wait_device_ops()
    assert torchport.executed_fallback_ops() == fallbacks
    return Outcome(bitwise, counter("UncachedCompile") - compiles)


NO_KERNEL = "could not create a primitive descriptor"
"""What the CPU's LSTM says of float16 on processors without float16 instructions."""


def check_evaluation(subject: Subject, options: Options) -> Outcome:
    """All that the model returns."""
    if subject.own_kernels:
        try:
            evaluated(subject, "cpu", options)
        except RuntimeError as error:
            if NO_KERNEL not in str(error):
                raise
            return Outcome(False, 0, f"not compared, the CPU says: {NO_KERNEL}")

    def run() -> bool:
        wanted, got = evaluated(subject, "cpu", options), evaluated(subject, D, options)
        if options.is_low_precision and subject.own_kernels:
            return assert_as_accurate(evaluated(subject, "cpu", in_float64(options)), wanted, got, options)
        return assert_close(wanted, got)

    return counted(run)


def check_training(subject: Subject, options: Options) -> Outcome:
    """The losses of a few steps, and the state after them; nothing is compiled after the third step."""

    def run() -> bool:
        wanted, got = trained(subject, "cpu", options), trained(subject, D, options)
        assert got.late_compiles == 0, f"compiles after the warm-up:\n{str(torchport.explain())[-3000:]}"
        if subject.own_kernels:
            exact = trained(subject, "cpu", in_float64(options))
            return assert_as_accurate(exact.results, wanted.results, got.results, options)
        return assert_close(wanted.results, got.results)

    return counted(run)


def in_float64(options: Options) -> Options:
    """The same in float64, nothing cast."""
    return replace(options, dtype=torch.float64, autocast=None)


def check_refusal(subject: Subject, run: Callable[[Subject, str, Options], Any], options: Options) -> Outcome:
    """The device refuses what the CPU refuses, in the same words."""

    def error_on(device: str) -> str:
        try:
            run(subject, device, options)
        except (RuntimeError, NotImplementedError) as error:
            return str(error)
        return "no error"

    wanted, got = error_on("cpu"), error_on(D)
    assert subject.low_precision in wanted
    assert wanted == got
    return Outcome(True, 0, f"refused, as on the CPU: {wanted}")


def check_generation(subject: Subject, way: str) -> Outcome:
    """The tokens; and that generating the same compiles nothing after the second time.

    When transformers runs a model first it keeps hold of intermediate results that it lets go of later, and which
    results are wanted is part of a program.
    """
    arguments = subject.generates[way]
    length = 0

    def run() -> bool:
        nonlocal length
        wanted, got = generated(subject, "cpu", arguments), generated(subject, D, arguments)
        length = wanted["tokens"].shape[1]
        return assert_close(wanted, got)

    outcome = counted(run)
    again = [counted(lambda: bool(generated(subject, D, arguments))) for _ in range(2)]
    assert again[1].compiles == 0
    return replace(outcome, note=f"{outcome.compiles} for {length}")


def check_initialisation(subject: Subject) -> Outcome:
    """A model that is made on the device has the weights that it has on the CPU."""
    return counted(lambda: assert_close(initialised(subject, "cpu"), initialised(subject, D)))


def check_saving(subject: Subject) -> Outcome:
    """What was trained and saved on the device is loaded on the host."""

    def run() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            return assert_close(*saved_and_loaded(subject, folder))

    return counted(run)


def check_way_there_and_back(subject: Subject) -> Outcome:
    """Moving a model to the device and back, and halving it there, keeps its weights and which of them are one."""

    def run() -> bool:
        model = made(subject)
        wanted, ties = {k: t.clone() for k, t in model.state_dict().items()}, tied(model)
        same = assert_close(wanted, dict(model.to(D).cpu().state_dict()))
        assert ties == tied(model)
        halved = {k: t.half() if t.is_floating_point() else t for k, t in wanted.items()}
        return assert_close(halved, dict(model.to(D).half().cpu().state_dict())) and same

    return counted(run)


def tied(model: torch.nn.Module) -> list[set[str]]:
    """The names of parameters that are one."""
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return [n for n in names.values() if len(n) > 1]


def checks_of(subject: Subject) -> dict[str, Check]:
    """All checks of a model, by name."""
    found: dict[str, Check] = {}
    for attention in subject.attention:
        options = Options(attention)
        found[f"evaluation, {attention}"] = _bound(check_evaluation, subject, options)
        found[f"training, {attention}"] = _bound(check_training, subject, options)
    first = subject.attention[0]
    if subject.checkpoints:
        found["training, checkpointing"] = _bound(check_training, subject, Options(first, checkpointing=True))
    for dtype in HALVES:
        name = str(dtype).removeprefix("torch.")
        for attention in subject.attention:
            found[f"evaluation, {name}, {attention}"] = _low(subject, evaluated, Options(attention, dtype))
            found[f"evaluation, autocast to {name}, {attention}"] = _bound(
                check_evaluation, subject, Options(attention, autocast=dtype)
            )
    found["training, bfloat16"] = _low(subject, trained, Options(first, torch.bfloat16))
    found["training, autocast to bfloat16"] = _bound(check_training, subject, Options(first, autocast=torch.bfloat16))
    for way in subject.generates:
        found[f"generation, {way}"] = _bound(check_generation, subject, way)
    found["initialisation"] = _bound(check_initialisation, subject)
    found["saving"] = _bound(check_saving, subject)
    found["moving"] = _bound(check_way_there_and_back, subject)
    return found


def each_run(subjects: tuple[Subject, ...]) -> list[tuple[Subject, str]]:
    """The checks that are part of every test run: the others, for the table, take the same paths once more."""
    found = []
    for subject in subjects:
        first = subject.attention[0]
        again = {f"training, {a}" for a in subject.attention[1:]} | {"training, bfloat16"}
        again |= {f"evaluation, {autocast}float16, {first}" for autocast in ("", "autocast to ")}
        again |= {n for n in checks_of(subject) if "float16, " in n and not n.endswith(f", {first}")}
        if subject.name not in _GENERATING_IN_ALL_WAYS:
            again |= {f"generation, {way}" for way in ("greedy, no cache", "beams", "beams, sampling")}
        found += [(subject, name) for name in checks_of(subject) if name not in again]
    return found


_GENERATING_IN_ALL_WAYS = ("GPT-2", "T5", "Mamba")


def _bound(check: Callable[..., Outcome], *arguments: Any) -> Check:
    return lambda: check(*arguments)


def _low(subject: Subject, run: Any, options: Options) -> Check:
    if subject.low_precision:
        return _bound(check_refusal, subject, run, options)
    return _bound(check_evaluation if run is evaluated else check_training, subject, options)
