"""Bad input, and what it gets at the call: eager's message, or ours with what to do."""

from __future__ import annotations

import gc
import inspect
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchport
from lazy.cases.oracle import D, compare, counted, data, digits
from torchport.backend import Computation
from torchport.backends.interpreter import InterpreterBackend
from torchport.errors import BackendRegistrationError, StrictModeError, UnknownBackendError

NAME = torch.device(D).type
THIS_FILE = "test_errors.py"


def here() -> int:
    """The line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


# -- at the call: what does not fit ----------------------------------------------------------------------------------

CALLS: dict[str, Callable[[str], object]] = {
    "add": lambda D: torch.ones(3, device=D) + torch.ones(4, device=D),
    "add in place": lambda D: torch.ones(3, device=D).add_(torch.ones(2, 3, device=D)),
    "mm": lambda D: torch.ones(2, 3, device=D) @ torch.ones(2, 3, device=D),
    "mv": lambda D: torch.mv(torch.ones(2, 3, device=D), torch.ones(2, device=D)),
    "bmm": lambda D: torch.bmm(torch.ones(2, 3, 4, device=D), torch.ones(3, 4, 2, device=D)),
    "linear": lambda D: F.linear(torch.ones(2, 3, device=D), torch.ones(4, 2, device=D)),
    "addmm": lambda D: torch.addmm(torch.ones(5, device=D), torch.ones(2, 3, device=D), torch.ones(3, 4, device=D)),
    "conv channels": lambda D: F.conv2d(torch.ones(1, 3, 5, 5, device=D), torch.ones(2, 4, 3, 3, device=D)),
    "conv too small": lambda D: F.conv2d(torch.ones(1, 3, 2, 2, device=D), torch.ones(2, 3, 3, 3, device=D)),
    "cat": lambda D: torch.cat([torch.ones(2, 3, device=D), torch.ones(2, 4, device=D)]),
    "stack": lambda D: torch.stack([torch.ones(2, device=D), torch.ones(3, device=D)]),
    "reshape": lambda D: torch.ones(6, device=D).reshape(4, 2),
    "view of a transposed": lambda D: torch.ones(2, 3, device=D).t().view(6),
    "expand": lambda D: torch.ones(3, device=D).expand(2, 4),
    "dim": lambda D: torch.ones(3, device=D).sum(2),
    "squeeze": lambda D: torch.ones(3, device=D).squeeze(3),
    "transpose": lambda D: torch.ones(3, device=D).transpose(0, 1),
    "select": lambda D: torch.ones(3, device=D)[5],
    "too many indices": lambda D: torch.ones(3, device=D)[0, 0],
    "narrow": lambda D: torch.ones(3, device=D).narrow(0, 2, 3),
    "split": lambda D: torch.ones(5, device=D).split([2, 2]),
    "mask": lambda D: torch.ones(3, device=D)[torch.ones(4, dtype=torch.bool, device=D)],
    "gather": lambda D: torch.ones(3, 2, device=D).gather(0, torch.zeros(2, dtype=torch.int64, device=D)),
    "index dtype": lambda D: torch.ones(3, device=D)[torch.ones(2, device=D)],
    "embedding dtype": lambda D: F.embedding(torch.ones(2, device=D), torch.ones(3, 2, device=D)),
    "layer norm": lambda D: F.layer_norm(torch.ones(2, 3, device=D), (4,)),
    "batch norm of one": lambda D: F.batch_norm(torch.ones(1, 3, device=D), None, None, training=True),
    "mse broadcast of wrong": lambda D: torch.nn.functional.l1_loss(torch.ones(3, device=D), torch.ones(4, device=D)),
    "cross entropy": lambda D: F.cross_entropy(torch.ones(3, 4, device=D), torch.zeros(2, dtype=torch.int64, device=D)),
    "dot of dtypes": lambda D: torch.dot(torch.ones(3, device=D), torch.ones(3, dtype=torch.float64, device=D)),
    "mm of dtypes": lambda D: torch.ones(2, 2, device=D) @ torch.ones(2, 2, dtype=torch.int64, device=D),
    "mean of ints": lambda D: torch.ones(3, dtype=torch.int64, device=D).mean(),
    "int /= int": lambda D: torch.ones(3, dtype=torch.int64, device=D).div_(2),
    "cast to int in place": lambda D: torch.ones(3, dtype=torch.int64, device=D).copy_(torch.ones(4, device=D)),
    "set an element to a vector": lambda D: torch.ones(3, device=D).__setitem__(0, torch.ones(2, device=D)),
    "set a slice": lambda D: torch.ones(4, device=D).__setitem__(slice(0, 2), torch.ones(3, device=D)),
    "item of many": lambda D: torch.ones(3, device=D).item(),
    "bool of many": lambda D: bool(torch.ones(3, device=D)),
    "int of many": lambda D: int(torch.ones(2, device=D)),
    "negative size": lambda D: torch.ones(-1, device=D),
    "arange": lambda D: torch.arange(0, 5, -1, device=D),
    "dropout": lambda D: F.dropout(torch.ones(3, device=D), 1.5),
    "quantile": lambda D: torch.ones(3, device=D).quantile(2.0),
    "topk": lambda D: torch.ones(3, device=D).topk(5),
    "cholesky of no square": lambda D: torch.linalg.cholesky(torch.ones(2, 3, device=D)),
    "repeat": lambda D: torch.ones(2, 3, device=D).repeat(2),
    "pad": lambda D: F.pad(torch.ones(3, device=D), (1, 1, 1, 1, 1)),
    "einsum": lambda D: torch.einsum("ij,jk->ik", torch.ones(2, 3, device=D), torch.ones(2, 3, device=D)),
    "as_strided past the end": lambda D: torch.ones(3, device=D).as_strided((4,), (1,)),
    "unknown padding": lambda D: F.pad(torch.ones(1, 1, 3, device=D), (5, 5), mode="reflect"),
    "max_pool": lambda D: F.max_pool2d(torch.ones(1, 1, 2, 2, device=D), 3),
    "one_hot of floats": lambda D: F.one_hot(torch.ones(3, device=D)),
    "view as complex": lambda D: torch.view_as_complex(torch.ones(3, 3, device=D)),
    "normal with a negative std": lambda D: torch.empty(2, device=D).normal_(0, -1),
    "uniform with crossed bounds": lambda D: torch.empty(2, device=D).uniform_(2, 1),
    "bernoulli with p above one": lambda D: torch.empty(2, device=D).bernoulli_(1.5),
    "multinomial of too many": lambda D: torch.multinomial(torch.ones(2, device=D), 5),
    "out of the wrong dtype": lambda D: torch.add(
        torch.ones(2, device=D), 1, out=torch.empty(2, dtype=torch.int64, device=D)
    ),
    "out that requires grad": lambda D: torch.add(
        torch.ones(2, device=D).requires_grad_(), 1, out=torch.empty(2, device=D).requires_grad_()
    ),
    "in place of an expanded": lambda D: torch.ones(1, device=D).expand(3).add_(1),
    "broadcast into a smaller target": lambda D: torch.ones(1, device=D).mul_(torch.ones(3, device=D)),
}


def raised_by(call: Callable[[str], object], device: str) -> Exception | None:
    """What the call raised, without its traceback's frames (they keep tensors alive)."""
    try:
        call(device)
    except Exception as error:  # noqa: BLE001 - whatever eager raises is the oracle
        return error.with_traceback(None)
    return None


def neutral(text: str) -> str:
    """The message without what differs from device to device in eager as well: its name, and that of tensor types."""
    return re.sub(r"[\w.]+(Tensor|Type)\b", "Tensor", text).replace("cpu", NAME)


@pytest.mark.parametrize("name", CALLS)
def test_what_does_not_fit_is_raised_at_the_call_with_eagers_message(name: str) -> None:
    wanted = raised_by(CALLS[name], "cpu")
    assert wanted is not None, "the oracle raises"
    got = raised_by(CALLS[name], D)
    assert got is not None, "nothing was raised at the call"
    assert type(got) is type(wanted)
    assert neutral(str(wanted).split("\n")[0]) in neutral(str(got))


@pytest.mark.parametrize("name", ["add", "mm", "cat", "add in place", "conv channels", "mask"])
def test_a_refused_call_leaves_nothing_behind(name: str) -> None:
    torchport.sync(wait=True)
    raised_by(CALLS[name], D)
    gc.collect()
    x = torch.ones(3, device=D)
    assert (x + 1).cpu().tolist() == [2, 2, 2]


def test_a_refused_write_leaves_its_target_as_it_was() -> None:
    x = data(D, 3)
    for write in (
        lambda: x.add_(torch.ones(4, device=D)),
        lambda: x.copy_(torch.ones(2, device=D)),
        lambda: x.__setitem__(slice(0, 2), torch.ones(3, device=D)),
        lambda: torch.mm(torch.ones(2, 3, device=D), torch.ones(2, 3, device=D), out=x),
        lambda: x.mul_(torch.ones(3)),
    ):
        with pytest.raises(RuntimeError):
            write()
    compare(data("cpu", 3), x)


def test_the_traceback_of_a_refused_call_ends_at_the_users_line() -> None:
    x, y = torch.ones(3, device=D), torch.ones(4, device=D)
    with pytest.raises(RuntimeError) as caught:
        x + y
    assert THIS_FILE in str(caught.traceback[0].path)


# -- at the call: tensors of another device --------------------------------------------------------------------------

MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda x, h: x + h,
    "add, the other way": lambda x, h: h + x,
    "mul in place": lambda x, h: x.mul_(h),
    "mul in place on the host": lambda x, h: h.mul_(x),
    "mm": lambda x, h: x @ h,
    "mm, the other way": lambda x, h: h @ x,
    "linear": lambda x, h: F.linear(x, h),
    "addmm": lambda x, h: torch.addmm(x, x, h),
    "cat": lambda x, h: torch.cat([x, h]),
    "cat, the other way": lambda x, h: torch.cat([h, x]),
    "stack": lambda x, h: torch.stack([x, h, x]),
    "where": lambda x, h: torch.where(x > 0, x, h),
    "where with a condition of the host": lambda x, h: torch.where(h > 0, x, x),
    "addcmul": lambda x, h: torch.addcmul(x, x, h),
    "lerp": lambda x, h: torch.lerp(x, h, 0.5),
    "gather": lambda x, h: x.gather(0, h.long() * 0),
    "index_select": lambda x, h: x.index_select(0, torch.tensor([0])),
    "embedding": lambda x, h: F.embedding(torch.tensor([0]), x),
    "mse_loss": lambda x, h: F.mse_loss(x, h),
    "layer_norm": lambda x, h: F.layer_norm(x, (3,), torch.ones(3)),
    "conv": lambda x, h: F.conv1d(x[None], h[:, :, None]),
    "attention": lambda x, h: F.scaled_dot_product_attention(x[None], h[None], x[None]),
    "out of the host": lambda x, h: torch.add(x, 1, out=h),
    "out of the device": lambda x, h: torch.add(h, 1, out=x),
    "scatter": lambda x, h: x.scatter(0, torch.zeros(1, 3, dtype=torch.int64, device=x.device), h),
    "masked_fill": lambda x, h: x.masked_fill(h > 0, 1.0),
    "a module that was left on the host": lambda x, h: nn.Linear(3, 3)(x),
    "bucketize": lambda x, h: torch.bucketize(x, torch.arange(3.0)),
}


EAGERS_TEXTS = (
    "xpected all tensors to be on the same device",
    "should be on the same device",
    "Expected query, key, and value to have the same device type",
)


@pytest.mark.parametrize("name", MIXED)
def test_a_cpu_tensor_among_device_tensors_gets_eagers_text(name: str) -> None:
    x, host = data(D, 3, 3), data("cpu", 3, 3)
    with pytest.raises(RuntimeError) as caught:
        MIXED[name](x, host)
    text = str(caught.value)
    assert any(part in text for part in EAGERS_TEXTS)
    assert f"{NAME}:0" in text
    assert "cpu" in text


def test_a_zero_dim_cpu_tensor_works_where_it_works_in_eager() -> None:
    x, wanted = data(D, 3, 3), data("cpu", 3, 3)
    scalar = torch.tensor(2.0)
    compare(wanted + scalar, x + scalar)
    compare(scalar - wanted, scalar - x)
    compare(torch.where(wanted > 0, wanted, scalar), torch.where(x > 0, x, scalar))
    compare(wanted.clamp(max=scalar), x.clamp(max=scalar))
    compare(wanted.clone().mul_(scalar), x.clone().mul_(scalar))
    x[0, 0], wanted[0, 0] = scalar, scalar
    compare(wanted.masked_fill(wanted > 1, scalar), x.masked_fill(x > 1, scalar))
    compare(wanted ** torch.tensor(2), x ** torch.tensor(2))


def test_indices_may_live_on_the_host_as_in_eager() -> None:
    x, wanted, index = data(D, 5, 2), data("cpu", 5, 2), torch.tensor([3, 1])
    compare(wanted[index], x[index])
    compare(wanted[wanted[:, 0] > 0], x[wanted[:, 0] > 0])
    x[index], wanted[index] = 4.0, 4.0
    compare(wanted, x)


def test_a_cpu_tensor_indexed_from_the_device_gets_eagers_text() -> None:
    with pytest.raises(RuntimeError, match=r"indices should be either on cpu or on the same device"):
        data("cpu", 5)[digits(D, 5, 2)]


def test_a_meta_tensor_among_device_tensors_is_refused() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        data(D, 3) + torch.ones(3, device="meta")


# -- backends --------------------------------------------------------------------------------------------------------


class Other(InterpreterBackend):
    """A second backend."""


class Another(InterpreterBackend):
    """A third one."""


def test_an_unknown_backend_lists_the_installed_ones_and_suggests_the_nearest() -> None:
    with pytest.raises(UnknownBackendError, match="Did you mean 'interpreter'") as caught:
        torchport.use("interpretor")
    assert "interpreter" in str(caught.value)
    assert torch.ones(1, device=D).item() == 1, "the active one goes on"


def test_a_backend_with_missing_methods_is_refused_when_it_is_registered() -> None:
    class Incomplete(torchport.BackendImplInterface):
        def compil(self, instances: list[Computation]) -> list[Computation]:
            return instances

    with pytest.raises(BackendRegistrationError) as caught:
        torchport.register_backend("incomplete", Incomplete)
    for method in ("compile", "execute_computation", "make_computation_data_from_tensor", "get_backend_devices"):
        assert method in str(caught.value)
    assert "incomplete" not in torchport.backends()


def test_two_backends_of_one_name_names_both_owners() -> None:
    with (
        torchport.BackendRegistrar("twice", Other),
        pytest.raises(BackendRegistrationError, match="Other") as caught,
    ):
        torchport.register_backend("twice", Another)
    assert "Another" in str(caught.value)


def test_switching_backends_finishes_what_is_pending_and_keeps_the_data() -> None:
    x = data(D, 4)
    done = x * 2
    torchport.sync(wait=True)
    pending = done + x.sum()
    view = pending[1:]
    with torchport.BackendRegistrar("other", Other):
        torchport.use("other")
        try:
            assert isinstance(torchport.get_backend(), Other)
            wanted = data("cpu", 4) * 2 + data("cpu", 4).sum()
            compare(wanted, pending)
            compare([wanted, wanted[1:]], [pending, view])
            pending.add_(1)
            compare([wanted + 1, (wanted + 1)[1:] * 1], [pending, view * 1], strides=False)
        finally:
            torchport.use("interpreter")
    compare(data("cpu", 4) * 2, done)


# -- strict mode -----------------------------------------------------------------------------------------------------


def test_strict_mode_refuses_an_implicit_sync_and_names_the_line() -> None:
    x = data(D, 4) * 2
    with torchport.set_strict(implicit_sync=True):
        with pytest.raises(StrictModeError) as caught:
            x.sum().item()
        line = here() - 1
        assert f"{THIS_FILE}:{line}" in str(caught.value)
        assert "torchport.sync()" in str(caught.value)
        torchport.sync()
        assert x.cpu().shape == (4,), "what was synced may be read"


@pytest.mark.parametrize(
    "read", [torch.Tensor.cpu, torch.Tensor.tolist, str, lambda t: bool(t[0] > 0), lambda t: t.nonzero()]
)
def test_strict_mode_refuses_every_implicit_read(read: Callable[[torch.Tensor], object]) -> None:
    x = data(D, 4) * 2
    with torchport.set_strict(implicit_sync=True), pytest.raises(StrictModeError):
        read(x)
    read(x)


# -- the slot --------------------------------------------------------------------------------------------------------


@pytest.mark.subprocess
def test_a_device_slot_that_is_taken_is_warned_of_and_the_rest_works() -> None:
    script = """
import warnings
import torch
torch.utils.rename_privateuse1_backend("somebody")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torchport
texts = [str(w.message) for w in caught]
assert any("somebody" in t for t in texts), texts
assert "interpreter" in torchport.backends()
assert (torch.ones(2) + 1).tolist() == [2, 2]
try:
    torchport.sync()
except RuntimeError as error:
    assert "somebody" in str(error), error
print("works")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "works\n", done.stderr


def test_a_refused_call_executes_nothing() -> None:
    torchport.sync(wait=True)
    with counted("Execute") as executions:
        raised_by(CALLS["conv channels"], D)
    assert executions == [0]
