"""What Python can mend of PyTorch for a device that is registered from Python.

The hooks that PyTorch 2.13 exposes to Python say no more than that the device is there. Each patch below names the
function of PyTorch that it replaces and why; tests/lazy/test_torch_internals.py tells when one is no longer needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack
from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchport.config import settings
from torchport.errors import DeviceUnavailableError
from torchport.lazy import active
from torchport.lazy.autocast import forget_casts
from torchport.lazy.padded_encoder import patch_encoder
from torchport.lazy.registration import differentiate_twice, take_interrupting_error, trace_whole
from torchport.lazy.sync import sync as barrier


def _device_module() -> Any:
    return getattr(torch, active.device_type)


def _is_ours() -> bool:
    accelerator = torch._C._accelerator_getAccelerator()
    return accelerator is not None and accelerator.type == active.device_type


def _patch_accelerator() -> None:
    """``torch.accelerator``: what needs a guard or an allocator from C++ raises, and ``empty_host_cache`` faults."""

    def replace(owner: Any, name: str, ours: Any) -> None:
        original = getattr(owner, name)

        def function(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs) if _is_ours() else original(*args, **kwargs)

        function.__name__, function.__doc__ = name, original.__doc__
        setattr(owner, name, function)

    def synchronize(device: Any = None, /) -> None:
        _device_module().synchronize(device)

    def set_device_index(device: Any, /) -> None:
        _device_module().set_device(device)

    replace(torch.accelerator, "synchronize", synchronize)
    for name in ("set_device_index", "set_device_idx"):
        replace(torch.accelerator, name, set_device_index)
    for name in (
        "get_device_capability",
        "empty_cache",
        "empty_host_cache",
        "get_memory_info",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_stats",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
    ):
        ours = getattr(_device_module(), name)
        for owner in (torch.accelerator, torch.accelerator.memory):
            if hasattr(owner, name):
                replace(owner, name, ours)


class _GeneratorType(type):
    """Makes ``torch.Generator(device)`` say what to do where PyTorch has no way to make one."""

    def __call__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type == active.device_type:
            raise DeviceUnavailableError(
                f"torch.Generator(device={str(device)!r}): PyTorch cannot make a generator for a device that is "
                'registered from Python. Use torch.Generator("cpu"): operators on '
                f"{active.device_type!r} take it as generator=, and draw the numbers that the CPU would draw."
            )
        return torch._C.Generator(device)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, torch._C.Generator)


def _patch_generator() -> None:
    """``torch.Generator``: its C++ error asks for C++ hooks."""
    torch.Generator = _GeneratorType("Generator", (), {"__doc__": torch._C.Generator.__doc__})  # type: ignore[misc, assignment]  # stands in for the class


def _crosses(module: torch.nn.Module, function: Any) -> bool:
    """Whether ``module._apply(function)`` moves its tensors to this device or from it."""
    for tensor in [*module.parameters(), *module.buffers()]:
        probe = function(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        return bool((probe.device.type == active.device_type) != (tensor.device.type == active.device_type))
    return False


def _patch_module_apply() -> None:
    """``nn.Module._apply``: a parameter stays the same object when it moves, as on CUDA, so ties and optimizers live.

    Whether a tensor's data may be replaced in place is a list of devices in C++ that ours is not on; swapping the
    tensor's insides, PyTorch's own alternative, keeps the object. Where it cannot be swapped (something in an autograd
    graph that is still alive, say), PyTorch makes a new parameter, and ties within the module are made again.
    """
    original: Callable[..., torch.nn.Module] = torch.nn.Module._apply

    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        if torch.__future__.get_swap_module_params_on_conversion() or not _crosses(self, fn):
            return original(self, fn, recurse)
        sites = _swap_parameters(self, fn, recurse)
        result = original(self, fn, recurse)
        for module, name, first_module, first_name in sites:
            module._parameters[name] = first_module._parameters[first_name]
        return result

    torch.nn.Module._apply = _apply  # type: ignore[method-assign]


_Tie = tuple[torch.nn.Module, str, torch.nn.Module, str]


def _swap_parameters(module: torch.nn.Module, function: Any, recurse: bool) -> list[_Tie]:
    """Moves every parameter that can be swapped; returns the ties among those that cannot."""
    first: dict[int, tuple[torch.nn.Module, str] | None] = {}
    ties: list[_Tie] = []
    for child in module.modules() if recurse else [module]:
        if isinstance(child, torch.nn.RNNBase):
            child._flat_weight_refs = []  # as RNNBase._apply does; it makes them again
        for name, parameter in child._parameters.items():
            if parameter is None:
                continue
            if id(parameter) in first:
                site = first[id(parameter)]
                if site is not None:
                    ties.append((child, name, *site))
            else:
                first[id(parameter)] = None if _swap(parameter, function) else (child, name)
    return ties


def _swap(parameter: torch.nn.Parameter, function: Any) -> bool:
    grad = parameter.grad
    with torch.no_grad():
        # .data, since it is all that an UninitializedParameter of a lazy module lets be read
        moved = torch.nn.Parameter(function(parameter.data), parameter.requires_grad)
        moved_grad = None if grad is None else function(grad)
    moved.__dict__.update(parameter.__dict__)
    moved.__class__ = parameter.__class__
    parameter.grad = None
    try:
        torch.utils.swap_tensors(parameter, moved)
    except RuntimeError:
        parameter.grad = grad
        return False
    parameter.grad = moved_grad
    return True


def _patch_printing() -> None:
    """``torch._tensor_str._tensor_str``: formats on the host, not with one device operation per number."""
    original = torch._tensor_str._tensor_str

    def _tensor_str(self: torch.Tensor, indent: int) -> str:
        if self.device.type == active.device_type and self.layout is torch.strided:
            self = self.detach().cpu()
        return original(self, indent)  # type: ignore[no-untyped-call,no-any-return]

    torch._tensor_str._tensor_str = _tensor_str


def _patch_backward() -> None:
    """``torch.autograd``: a backward pass over this device runs on the thread that asked for it.

    PyTorch runs it on a thread of its own per device, where each of our kernels would have to make and drop a Python
    thread state (10 µs), and where no frame of the user's program is to be seen.
    """
    autograd: Any = torch.autograd
    original = autograd._engine_run_backward

    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        for t in t_outputs:
            if isinstance(t, torch.Tensor) and t.device.type == active.device_type:
                break
        else:
            return original(t_outputs, *args, **kwargs)
        if active.recorder is not None and not args[1]:  # retain_graph
            active.recorder.backward_from(t_outputs)
        if args[2]:  # create_graph
            differentiate_twice()
        # What torch.autograd.set_multithreading_enabled does, without its 10 µs.
        before = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
        try:
            return original(t_outputs, *args, **kwargs)
        except BaseException:
            error = take_interrupting_error()
            if error is None:
                raise
        finally:
            torch._C._set_multithreading_enabled(before)
        raise error

    autograd._engine_run_backward = _engine_run_backward


def _patch_default_dtype() -> None:
    """``torch.set_default_dtype``: what was traced before it ran under the old one, also where it runs later."""
    original = torch.set_default_dtype

    def set_default_dtype(d: torch.dtype, /) -> None:
        if d is not torch.get_default_dtype():
            active.flush()
            original(d)
            active.forget()

    set_default_dtype.__doc__ = original.__doc__
    torch.set_default_dtype = set_default_dtype


def _patch_autocast_cache() -> None:
    """``torch.clear_autocast_cache``: the casts of this device's weights are kept in Python, and are to go as well."""
    original: Callable[[], None] = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        original()
        forget_casts()

    clear_autocast_cache.__doc__ = original.__doc__
    torch.clear_autocast_cache = clear_autocast_cache


def _patch_exports() -> None:
    """``Tensor.__dlpack__`` and ``share_memory_``: they would hand out an address at which there is no memory."""

    def refuse(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def function(self: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(self, torch.Tensor) and self.device.type == active.device_type:
                raise RuntimeError(
                    f"{name}: a tensor on {active.device_type!r} has no memory that another library or process could "
                    "read. Copy it to the host first: tensor.cpu()."
                )
            return original(self, *args, **kwargs)

        function.__name__, function.__doc__ = name, original.__doc__
        setattr(owner, name, function)

    refuse(torch.Tensor, "__dlpack__")
    refuse(torch.Tensor, "share_memory_")
    refuse(torch.utils.dlpack, "to_dlpack")


def _patch_pinning() -> None:
    """``Tensor.pin_memory``: host memory needs no pinning for this device, and PyTorch would ask for an allocator."""
    original: Callable[..., torch.Tensor] = torch.Tensor.pin_memory

    def pin_memory(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self if _is_ours() and self.device.type == "cpu" else original(self, *args, **kwargs)

    pin_memory.__doc__ = original.__doc__
    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]


def _patch_forward_ad() -> None:
    """``forward_ad.enter_dual_level``: ``linear`` as a whole has no forward derivative; its parts have.

    While a level is open the operator is left to PyTorch, which takes it apart.
    """
    forward_ad: Any = torch.autograd.forward_ad
    enter, leave = forward_ad.enter_dual_level, forward_ad.exit_dual_level

    def enter_dual_level() -> Any:
        trace_whole(False)
        return enter()

    def exit_dual_level(*, level: Any = None) -> None:
        leave(level=level)
        if forward_ad._current_level < 0:
            trace_whole(True)

    forward_ad.enter_dual_level, forward_ad.exit_dual_level = enter_dual_level, exit_dual_level


def _patch_linear_cross_entropy() -> None:
    """``LinearCrossEntropyOptions``: what it leaves open is chosen by the device's name, from a table of CPU and CUDA.

    The CPU's choice is taken, as for anything else on this device.
    """
    original: Callable[..., LinearCrossEntropyOptions] = LinearCrossEntropyOptions._adjust

    def _adjust(
        self: Any, num_batches: Any, in_features: Any, num_classes: Any, dtype: Any, device: torch.device | None = None
    ) -> Any:
        if device is not None and device.type == active.device_type:
            device = torch.device("cpu")
        return original(self, num_batches, in_features, num_classes, dtype, device)

    LinearCrossEntropyOptions._adjust = _adjust  # type: ignore[method-assign]


def _after_optimizer_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if settings.barrier_after_optimizer_step and active.trace.operations:
        groups = optimizer.param_groups
        if any(g["params"] and g["params"][0].device.type == active.device_type for g in groups):
            barrier()


def install() -> None:
    """Applies all patches, and the barrier after ``optimizer.step()``."""
    _patch_accelerator()
    _patch_generator()
    _patch_module_apply()
    _patch_printing()
    _patch_backward()
    _patch_autocast_cache()
    _patch_default_dtype()
    _patch_exports()
    _patch_pinning()
    _patch_forward_ad()
    _patch_linear_cross_entropy()
    patch_encoder()
    register_optimizer_step_post_hook(_after_optimizer_step)
