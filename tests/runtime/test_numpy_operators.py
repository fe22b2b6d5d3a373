"""Each operator that runs in numpy gives what PyTorch gives, for the calls that PyTorch's own test samples make."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from torchport_runtime.interpreter.dtypes import NAMES
from torchport_runtime.interpreter.program import _DRAWS, OPERATORS, _as
from torchport_runtime.plain import DType

CALLS_PER_OPERATOR = 24
DTYPES = (torch.float32, torch.int64)
NOT_IN_SAMPLES = {
    "port.scalar": "a node of ours",
    "port.tensor_list": "a node of ours",
}
"""Operators that no sample of PyTorch's calls; each has a test elsewhere, or is one of these by another name."""
MAY_CHOOSE_AMONG_EQUALS = {"aten.topk.default", "aten.sort.default", "aten.sort.stable"}
"""Which of several equal elements an index means is not said; the values are compared, and an index in a test below."""
SHORT = {
    getattr(torch, str(dtype)): name for dtype, name in ((str(d), n) for d, n in NAMES.items()) if hasattr(torch, dtype)
}
SHORT[torch.bool] = "b8"


X, N, M = torch.randn(3, 4), torch.randint(-9, 9, (3, 4)), torch.rand(3, 4) > 0.5
MORE_CALLS: dict[str, list[tuple[Any, ...]]] = {
    **{f"{op}.Scalar": [(N, 5), (M, True), (N, -3)] for op in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{f"{op}.default": [(X,), (N,)] for op in ("lift", "lift_fresh_copy", "detach_copy")},
    "_reshape_alias.default": [(X, [4, 3], [3, 1])],
    "arange.start": [(2, 7), (0.5, 4)],
    "clamp_max.default": [(X, 0.3), (N, 2)],
    "copy.default": [(X, N), (N, X), (X, torch.ones(4))],
    "native_dropout.default": [(X, 0.5, False)],
    "_native_batch_norm_legit_no_training.default": [
        (torch.randn(2, 3, 4, 4), torch.rand(3), torch.rand(3), torch.randn(3), torch.rand(3), 0.1, 1e-5),
        (torch.randn(5, 3), None, None, torch.randn(3), torch.rand(3), 0.1, 1e-5),
    ],
    "_scaled_dot_product_flash_attention_for_cpu.default": [
        (torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8), 0.0, False),
        (torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), 0.0, True),
    ],
    "fmod.Scalar": [(N, 4), (X, 0.3)],
    "linalg_vector_norm.default": [
        *(
            (X, order, dims, keepdim)
            for order in (0, 1, 2.0, 3.5, float("inf"), -float("inf"))
            for dims, keepdim in ((None, False), ([-1], True))
        ),
        (X.half(),),
        (X, 2, None, False),
    ],
    "gt.Scalar": [(N, 4), (X, 0.3)],
    "pow.Scalar": [(2, X), (2.5, N.abs())],
    "scatter.value": [(X, 1, torch.tensor([[0, 2], [1, 3]]), 7.5), (N, 0, torch.tensor([[0, 2, 1]]), 7)],
    "select_copy.int": [(X, 1, 2), (X, -1, -1)],
    "slice_copy.Tensor": [(X, 1, 1, 9, 2)],
    "split_copy.Tensor": [(X, 3, 1)],
    "squeeze_copy.dims": [(torch.ones(1, 3, 1), [0, 2]), (torch.ones(1, 3, 1), [1])],
    "transpose_copy.int": [(X, 0, 1)],
    "remainder.Scalar_Tensor": [(7, N.abs() + 1), (2.5, X.abs() + 1)],
}
"""What no sample calls."""


class Recorder(TorchDispatchMode):
    """Keeps calls of the operators that numpy has, with copies of what they were given and gave."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func)
        kept = self.calls.setdefault(name, [])
        if name not in OPERATORS or len(kept) >= CALLS_PER_OPERATOR or not _is_plain((args, kwargs)):
            return func(*args, **kwargs)
        given = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs))
        result = func(*args, **kwargs)
        kept.append((*given, torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), result)))
        return result


def _is_plain(tree: Any) -> bool:
    tensors = [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
    return all(t.dtype in SHORT and t.layout is torch.strided and t.device.type == "cpu" for t in tensors)


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[tuple[Any, ...]]]:
    recorder = Recorder()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for info in op_db:
            for dtype in DTYPES:
                if dtype in info.dtypes and not info.name.startswith(("linalg", "fft", "sparse", "special.", "signal")):
                    _record(info, dtype, recorder)
        with recorder:
            for name, calls in MORE_CALLS.items():
                packet, overload = name.split(".")
                for call in calls:
                    getattr(getattr(torch.ops.aten, packet), overload)(*call)
            for x, number in ((N, 4), (X, 0.3)):
                for mode in ("floor", "trunc"):
                    torch.ops.aten.div.Scalar_mode(x, number, rounding_mode=mode)
    return recorder.calls


def _record(info: Any, dtype: torch.dtype, recorder: Recorder) -> None:
    samples = iter(info.sample_inputs("cpu", dtype))
    for _ in range(4):
        sample = next(samples, None)
        if sample is None:
            return
        try:
            with recorder:
                info.op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AssertionError):
            continue  # a sample that does not run alone is no matter here


def to_numpy(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.resolve_conj().resolve_neg().numpy()
    if isinstance(x, torch.dtype):
        return DType(SHORT.get(x, str(x)))
    if isinstance(x, (list, tuple)):
        return [to_numpy(y) for y in x]
    return x


def leaves(x: Any) -> list[Any]:
    return [y for z in x for y in leaves(z)] if isinstance(x, (list, tuple)) else [x]


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_operator_gives_what_pytorch_gives(name: str, recorded: dict[str, list[tuple[Any, ...]]]) -> None:
    calls = recorded.get(name, [])
    if not calls and name in NOT_IN_SAMPLES:
        pytest.skip(NOT_IN_SAMPLES[name])
    assert calls, "no sample calls it"
    for args, kwargs, wanted in calls:
        if name in _DRAWS and (len(args) < 3 or args[2] is not False):
            continue  # it draws random numbers, and is refused when it is loaded
        given = {k: to_numpy(v) for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
        with np.errstate(all="ignore"):
            found = OPERATORS[name](*[to_numpy(a) for a in args], **given)
        expected = [t for t in leaves(wanted) if isinstance(t, torch.Tensor)]
        outputs = found if isinstance(found, list) else [found]
        if name in MAY_CHOOSE_AMONG_EQUALS:
            outputs, expected = outputs[:1], expected[:1]
        for got, want in zip(outputs, expected, strict=True):
            if "empty" in name:
                assert np.asarray(got).shape == tuple(want.shape)
                continue
            if ("batch_norm" in name and not want.numel()) or ("flash" in name and want is not expected[0]):
                continue  # what backward would need
            made = torch.from_numpy(np.array(_as(got, SHORT[want.dtype])))
            torch.testing.assert_close(made, want, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("descending", [False, True])
def test_indices_of_different_elements_are_those_of_pytorch(descending: bool) -> None:
    x = torch.randperm(60, generator=torch.Generator().manual_seed(0)).reshape(3, 4, 5).float()
    for dim in (0, 1, -1):
        for name, args in (("sort", (dim, descending)), ("topk", (2, dim, descending))):
            wanted = getattr(torch, name)(x, *args)
            found = OPERATORS[f"aten.{name}.default"](x.numpy(), *args)
            for got, want in zip(found, wanted, strict=True):
                torch.testing.assert_close(torch.from_numpy(np.array(got)), want)
