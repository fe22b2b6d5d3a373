"""What torchport leans on inside PyTorch, and what it mends there: a new version that changes one is told here first.

Each patch of ``lazy/torch_patches.py`` has a test that fails when PyTorch no longer needs it.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch

import torchport
from torchport.lazy import autocast
from torchport.lazy import tensor as lazy_tensor_module

D = torchport.settings.device_name


class Mark:
    """Something that can be referred to weakly."""


def test_dlpack_makes_a_tensor_of_an_extension_device_with_its_address_and_size() -> None:
    x = torch.empty(3, 4, device=D)
    assert (x.device.type, x.untyped_storage().nbytes()) == (D, 48)
    assert x.data_ptr() >= lazy_tensor_module._FIRST_ADDRESS


def test_a_storage_keeps_its_python_object_and_what_hangs_on_it_while_only_cpp_refers_to_it() -> None:
    x = torch.empty(2, device=D)
    mark = Mark()
    alive = weakref.ref(mark)
    x.untyped_storage().mark = mark  # type: ignore[attr-defined]
    view = x.detach()
    del x, mark
    gc.collect()
    assert alive() is view.untyped_storage().mark  # type: ignore[attr-defined]
    del view
    gc.collect()
    assert alive() is None


def test_views_and_detach_are_made_without_a_kernel_of_ours() -> None:
    x = torch.arange(6.0, device=D)
    torchport.metrics.reset()
    views = [x.detach(), x.view(2, 3), x.view(2, 3).t(), x[1:], x.expand(2, 6)]
    assert {v.untyped_storage()._cdata for v in views} == {x.untyped_storage()._cdata}
    assert [n for n in torchport.metrics.counter_names() if n.startswith("lazy::")] == []


def test_numbers_reach_a_kernel_as_python_numbers() -> None:
    text = torchport.debug.ir_text(torch.ones(2, device=D) * 2.5)
    assert "$0: float = 2.5" in text or "float = 2.5" in text


def test_backward_without_the_patch_runs_on_a_thread_of_its_own() -> None:
    import threading

    seen: list[int] = []
    x = torch.ones(2, device=D, requires_grad=True)
    y = (x * 2).sum()
    y.register_hook(lambda g: seen.append(threading.get_ident()))
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        (y,), (torch.ones((), device=D),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
    assert seen != [threading.get_ident()], "PyTorch runs it here by itself: _patch_backward is no longer needed"
    (torch.ones(2, device=D, requires_grad=True) * 2).sum().backward()


NEEDED = {
    "synchronize": "torch._C._accelerator_synchronizeDevice(0)",
    "capability": "torch._C._accelerator_getDeviceCapability(0)",
    "accumulated": "torch._C._accelerator_resetAccumulatedStats(0)",
    "generator": "torch._C.Generator('port')",
    "memory": "torch._C._accelerator_getMemoryInfo(0)"
    if hasattr(torch._C, "_accelerator_getMemoryInfo")
    else "torch._C._accelerator_getDeviceStats(0)",
}


@pytest.mark.parametrize("statement", NEEDED.values(), ids=NEEDED)
def test_pytorch_still_cannot(statement: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        eval(statement, {"torch": torch})


def test_parameters_would_not_stay_the_same_objects_by_themselves() -> None:
    cpu, device = torch.ones(1), torch.ones(1, device=D)
    assert not torch._has_compatible_shallow_copy_type(cpu, device), "_patch_module_apply is no longer needed"


def test_leaving_the_outermost_autocast_clears_its_cache_through_a_name_that_can_be_replaced() -> None:
    with torch.autocast(D, torch.bfloat16):
        weight = torch.ones(2, 2, device=D, requires_grad=True)
        weight @ weight
        assert 1 == len(autocast._casts)
    assert 0 == len(autocast._casts), "torch.amp no longer calls torch.clear_autocast_cache: see _patch_autocast_cache"


def test_storages_would_need_an_allocator() -> None:
    script = (
        "import torch, torchport\n"
        "from torchport.lazy import storage_support as s\n"
        "x = torch.ones(2, device='port')\n"
        "s._originals['clone'](x.untyped_storage())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0, "PyTorch copies such storages by itself: storage_support is no longer needed"


@pytest.mark.parametrize(
    "name",
    [
        "_from_dlpack",
        "_dispatch_get_registrations_for_dispatch_key",
        "_AutoDispatchBelowAutograd",
        "_set_multithreading_enabled",
        "_is_multithreading_enabled",
        "_get_privateuse1_backend_name",
    ],
)
def test_a_private_name_is_still_there(name: str) -> None:
    assert hasattr(torch._C, name)


def test_a_dtype_to_accumulate_in_is_still_chosen_by_the_devices_name() -> None:
    table = torch.nn.modules.linear_cross_entropy_options._AUTO_DEFAULTS
    assert ("cpu", torch.bfloat16) in table, "_patch_linear_cross_entropy is no longer needed"
    assert (D, torch.bfloat16) not in table


def test_attention_is_taken_apart_without_our_kernel() -> None:
    q = torch.ones(1, 1, 2, 8, device=D)
    torchport.metrics.reset()
    torch.ops.aten.scaled_dot_product_attention.default.decompose(q, q, q)
    flash = "lazy::_scaled_dot_product_flash_attention_for_cpu"
    assert flash not in torchport.metrics.counter_names(), "PyTorch asks for the device's choice by itself"


def test_the_gradient_of_a_complex_linear_has_no_derivative_of_its_own() -> None:
    x, w = (torch.ones(2, 2, dtype=torch.complex64, requires_grad=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="linear_backward"):
        torch.ops.aten.linear_backward.default(x, x, w, [True, True, True])


def test_an_in_place_product_with_a_number_still_rounds_it_in_half_precision() -> None:
    x, number = torch.randn(100, generator=torch.Generator().manual_seed(0)).half(), 1.1283791670955126
    exact = torch.ops.aten.mul.Scalar(x, number)
    assert not torch.equal(exact, torch.ops.aten.mul_.Scalar(x.clone(), number)), "_ROUNDING_TWIN is no longer needed"
    assert torch.equal(exact, x.clone().mul_(number))


@pytest.mark.subprocess
def test_an_exception_that_unwinds_the_autograd_engine_still_ends_the_process_without_our_guard() -> None:
    script = f"""
import itertools, torch, torchport
from torchport.lazy import registration
registration._Guard.type_ = itertools.repeat(torch._C._autograd.DeviceType.PrivateUse1).__next__
y = torch.ones(3, device={D!r}, requires_grad=True).sin()
y.grad_fn.register_hook(lambda *a: 1 / 0)
try:
    y.sum().backward()
except ZeroDivisionError:
    print("caught")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode < 0, "PyTorch lets exceptions pass now: registration._answers() can be simple again"
    assert "caught" not in done.stdout


# Said once per process.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_nested_tensors_still_have_no_sizes_of_their_own() -> None:
    nested = torch._nested_tensor_from_mask(torch.ones(1, 2, 3), torch.tensor([[True, False]]))
    with pytest.raises(RuntimeError, match="sizes"):
        nested.shape  # noqa: B018  # if it had any, it could be traced, and lazy/padded_encoder.py would not be needed
