"""What the sweep does with a module: forward, backward, statistics, state saved and loaded, forward once more."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.rnn import PackedSequence

from sweeps.modes import cotangent, tensors_of
from sweeps.module_modes import MODULE_MODES, ModuleMode
from sweeps.placement import Placement
from sweeps.programs import Outcome, Program, compared, spread
from sweeps.records import SampleRecord
from sweeps.reference import precise


def run_module(
    info: Any,
    mode: str,
    dtype: torch.dtype,
    limit: int,
    started: Callable[[int], None],
    ended: Callable[[SampleRecord], None],
) -> None:
    """Runs up to ``limit`` of the database's inputs of a module; calls ``started`` before each, ``ended`` after it."""
    way = MODULE_MODES[mode]
    for index, module_input in spread(way.inputs(info, dtype), limit):
        started(index)
        program, exact = (module_program(info.module_cls, module_input, way, d) for d in (dtype, torch.float64))
        ended(compared(index, program, exact))


def module_program(module_class: type[nn.Module], module_input: Any, way: ModuleMode, dtype: torch.dtype) -> Program:
    """The program that makes the module, uses it, and saves and loads its state."""

    def made(device: str, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return way.make(module_class, module_input.constructor_input, device, dtype)

    def program(device: str) -> Outcome:
        module = made(device, seed=1)
        placement = Placement(device)
        forward = module_input.forward_input
        args = [_placed(placement, way.arranged(a), dtype) for a in forward.args]
        kwargs = {k: _placed(placement, way.arranged(v), dtype) for k, v in forward.kwargs.items()}

        def called(module: nn.Module, seed: int) -> Any:
            torch.manual_seed(seed)
            return module(*map(way.argument, args), **{k: way.argument(v) for k, v in kwargs.items()})

        outcome = Outcome()
        results = outcome.device
        output = called(module, seed=2)
        results["output"] = _plain(output)
        results["state after the forward"] = {k: v.clone() for k, v in module.state_dict().items()}
        differentiable = [t for t in tensors_of(_plain(output)) if t.requires_grad]
        if differentiable:
            cotangents = [placement.place(way.arrange(cotangent(t))) for t in differentiable]
            torch.autograd.backward(differentiable, cotangents)
        results["gradients of the inputs"] = [t.grad for t in tensors_of(_plain((args, kwargs))) if t.is_leaf]
        results["gradients of the parameters"] = {n: p.grad for n, p in module.named_parameters()}
        with torch.no_grad():  # some modules take another path where nothing is differentiated
            results["output without gradients"] = _plain(called(module, seed=3))
        _save_and_load(outcome, module, made(device, seed=4), made("cpu", seed=4), called)
        return outcome

    return program


def _save_and_load(
    outcome: Outcome,
    module: nn.Module,
    other: nn.Module,
    on_host: nn.Module,
    called: Callable[[nn.Module, int], Any],
) -> None:
    """Takes the state to the CPU in a file, and from there to another module on the device."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    on_host.load_state_dict(torch.load(file, map_location="cpu"))
    outcome.host["state loaded on the cpu"] = dict(on_host.state_dict())
    if isinstance(other, LazyModuleMixin):
        called(other, 4)  # LazyInstanceNorm takes its sizes from its first input, and not from what it loads
    other.load_state_dict(on_host.state_dict())
    outcome.device["output after loading"] = _plain(called(other, 5))
    outcome.device["state after loading"] = dict(other.state_dict())


def _placed(placement: Placement, x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, PackedSequence):
        fields = x._asdict()
        sizes = fields.pop("batch_sizes")  # it stays on the CPU on every device
        return PackedSequence(**{k: _placed(placement, v, dtype) for k, v in fields.items()}, batch_sizes=sizes)
    # The inputs are in the sweep's dtype, unless this is the reference in double precision.
    return placement.place(precise(x) if dtype is torch.float64 else x)


def _plain(x: Any) -> Any:
    """The pytree without packed sequences, which pytree knows nothing of."""
    if isinstance(x, PackedSequence):
        return [x.data, x.sorted_indices, x.unsorted_indices]
    if isinstance(x, tuple | list):
        return [_plain(v) for v in x]
    return {k: _plain(v) for k, v in x.items()} if isinstance(x, dict) else x
