"""Runs a program on the CPU and on the device, and compares what is left of it."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import torchport
from lazy.cases.oracle import THAT_MOVE, D, compare, nothing
from programs.program import Program

SEED = 7


@contextmanager
def refused() -> Iterator[list[str]]:
    """Catches the error of the statement inside; the list then holds its type.

    Not its text: of several things that are wrong with a call, the device may name another one first.
    """
    found = ["nothing was refused"]
    try:
        yield found
    except Exception as error:  # noqa: BLE001 - eager's own error, whatever it is, is what is compared
        # Eager says NotImplementedError, which is a RuntimeError, where it looks at the dtype first.
        found[0] = "RuntimeError" if isinstance(error, RuntimeError) else type(error).__name__


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """What the functions return, each run on a thread of its own; they start together."""
    start = threading.Barrier(len(functions))
    outcomes: list[Any] = [None] * len(functions)

    def run(i: int) -> None:
        start.wait()
        try:
            outcomes[i] = functions[i]()
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            outcomes[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def namespace() -> dict[str, Any]:
    """The names that a program may use."""
    return {"torch": torch, "F": F, "copy": copy, "refused": refused, "at_once": at_once, "Callable": Callable}


def compiled(program: Program) -> Callable[[str, Callable[[], None]], Any]:
    """The program's function."""
    names = namespace()
    exec(compile("from __future__ import annotations\n" + program.source, "<program>", "exec"), names)
    return names["program"]  # type: ignore[no-any-return]


def check_program(program: Callable[[str, Callable[[], None]], Any]) -> None:
    """The program leaves on the device what it leaves on the CPU."""
    with warnings.catch_warnings():
        # A program may do what PyTorch warns of. The warnings themselves are not compared: most come once per process.
        warnings.simplefilter("ignore")
        torchport.sync()
        torch.manual_seed(SEED)
        wanted = program("cpu", nothing)
        torch.manual_seed(SEED)
        got = program(D, torchport.sync)
        # Where two gradients of one tensor meet, eager adds in place and keeps the strides of the first. The device
        # adds into a new tensor: autograd sees that the storage has another owner, the Python object with the value.
        compare(wanted, got, strides=THAT_MOVE)
        assert storage_bytes(wanted) == storage_bytes(got), "bytes of the storages"


def storage_bytes(results: Any) -> list[int]:
    """Of each tensor the bytes of its storage."""
    return [t.untyped_storage().nbytes() for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
