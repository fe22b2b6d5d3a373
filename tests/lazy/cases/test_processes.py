"""Worker processes, forks and threads (cases 23 and 24)."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import torchport
from lazy.cases.oracle import D, counter, data

BACKEND_PROBE = """
import os, sys
import torch, torchport
from torchport.backends.interpreter import InterpreterBackend

class Probe(InterpreterBackend):
    def __init__(self):
        note("made"); super().__init__()
    def initialize_aten_bindings(self):
        note("activated"); super().initialize_aten_bindings()
    def compile(self, instances):
        note("compiled"); return super().compile(instances)
    def prepare_to_exit(self):
        note("exited"); super().prepare_to_exit()

def note(what):
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()} {what}\\n")

torchport.register_backend("probe", Probe)

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.full((3,), float(i)), os.getpid()

if __name__ == "__main__":
    torchport.use("probe")
    model = torch.nn.Linear(3, 2, device="port")
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[2], pin_memory=False
    )
    workers = set()
    for x, pids in loader:
        model(x.to("port")).sum().item()
        workers |= set(pids.tolist())
    assert workers and os.getpid() not in workers
    print("main", os.getpid())
"""


# -- 23: workers -----------------------------------------------------------------------------------------------------


@pytest.mark.subprocess
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loader_workers_never_start_a_backend(start: str, tmp_path: Path) -> None:
    script, log = tmp_path / "probe_script.py", tmp_path / "log"
    script.write_text(BACKEND_PROBE)
    done = subprocess.run(
        [sys.executable, str(script), str(log), start], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    main = done.stdout.split()[-1]
    notes = [line.split() for line in log.read_text().splitlines()]
    assert {pid for pid, _ in notes} == {main}
    assert [what for _, what in notes if what != "compiled"] == ["made", "activated", "exited"]


class Squares(Dataset[torch.Tensor]):
    """Host tensors, made in a worker."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index)) ** 2


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_data_loader_go_to_the_device(workers: int) -> None:
    total = sum(batch.to(D).sum() for batch in DataLoader(Squares(), batch_size=2, num_workers=workers))
    assert total.item() == 55


def test_a_data_loader_over_tensors_of_the_device() -> None:
    x, y = data(D, 6, 2), torch.arange(6, device=D)
    batches = list(DataLoader(TensorDataset(x, y), batch_size=4))
    assert [tuple(b[0].shape) for b in batches] == [(4, 2), (2, 2)]
    torch.testing.assert_close(torch.cat([b[0] for b in batches]).cpu(), x.cpu())
    assert torch.cat([b[1] for b in batches]).cpu().tolist() == list(range(6))


def in_a_child(connection: multiprocessing.connection.Connection) -> None:
    """Uses the device in a forked child and tells what happened."""
    try:
        connection.send(("value", (torch.ones(2, device=D) + 1).cpu().tolist()))
    except RuntimeError as error:
        connection.send(("error", str(error)))
    connection.close()


def test_using_the_device_in_a_forked_child_works_or_is_refused_with_advice_and_never_hangs() -> None:
    (torch.ones(2, device=D) + 1).cpu()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=in_a_child, args=(theirs,))
    child.start()
    try:
        assert ours.poll(60), "the child hangs"
        kind, what = ours.recv()
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
    if kind == "value":
        assert what == [2.0, 2.0]
    else:
        assert "fork" in what
        assert "spawn" in what
    assert (torch.ones(2, device=D) + 1).cpu().tolist() == [2, 2], "the parent goes on"


def seed_in_a_child(connection: multiprocessing.connection.Connection) -> None:
    """What every DataLoader worker does first."""
    torch.manual_seed(3)
    connection.send(torch.rand(2).tolist())
    connection.close()


def test_a_forked_child_may_seed_and_use_the_cpu() -> None:
    torch.ones(2, device=D).cpu()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=seed_in_a_child, args=(theirs,))
    child.start()
    try:
        assert ours.poll(60), "the child hangs"
        torch.manual_seed(3)
        assert ours.recv() == torch.rand(2).tolist()
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
    assert child.exitcode == 0


@pytest.mark.subprocess
def test_importing_starts_no_backend_and_no_thread() -> None:
    script = (
        "import threading, torch, torchport\n"
        "assert not torchport.has_backend()\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.subprocess
def test_a_process_exits_cleanly_with_work_pending_and_in_flight() -> None:
    script = (
        "import torch, torchport\n"
        f"x = torch.ones(500, 500, device={D!r})\n"
        "for _ in range(20):\n"
        "    x = x @ x / 500\n"
        "torchport.sync()\n"
        "y = x + 1\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stderr == ""


# -- 24: threads -----------------------------------------------------------------------------------------------------


def in_threads(work: Callable[[int], object], n: int = 4) -> list[object]:
    """What each thread returned; the first error, if any thread raised."""
    results: list[object] = [None] * n
    errors: list[BaseException] = []
    start = threading.Barrier(n)

    def body(i: int) -> None:
        try:
            start.wait()
            results[i] = work(i)
        except BaseException as error:  # noqa: BLE001 - it is raised again below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("barrier_each", [False, True])
def test_four_threads_trace_at_once(barrier_each: bool) -> None:
    def work(i: int, device: str = D) -> torch.Tensor:
        x = torch.full((4,), float(i), device=device)
        for j in range(60):
            x = torch.sin(x) + j * 0.1
            x[j % 4].add_(i)
            if barrier_each and device == D and j % 7 == 0:
                torchport.sync()
        return x.cpu()

    for i, got in enumerate(in_threads(work)):
        torch.testing.assert_close(got, work(i, "cpu"))


def test_four_threads_train_four_models() -> None:
    def work(i: int, device: str = D) -> list[torch.Tensor]:
        model = nn.Linear(3, 2)
        with torch.no_grad():
            for j, p in enumerate(model.parameters()):
                p.copy_(data("cpu", *p.shape, seed=10 * i + j))
        model.to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(10):
            optimizer.zero_grad()
            model(data(device, 4, 3, seed=i)).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    for i, got in enumerate(in_threads(work)):
        torch.testing.assert_close(got, work(i, "cpu"))


def test_a_thread_reads_what_another_one_traces() -> None:
    x = torch.arange(1000.0, device=D)

    def work(i: int) -> float:
        total = 0.0
        for j in range(20):
            total += (x[i::4] + j).sum().item()
        return total

    wanted = [sum((torch.arange(1000.0)[i::4] + j).sum().item() for j in range(20)) for i in range(4)]
    assert in_threads(work) == pytest.approx(wanted)


def test_threads_that_write_to_parts_of_one_tensor() -> None:
    x = torch.zeros(4, 50, device=D)

    def work(i: int) -> None:
        for _ in range(50):
            x[i].add_(i + 1)

    in_threads(work)
    torch.testing.assert_close(x.cpu(), torch.arange(1.0, 5.0)[:, None].expand(4, 50) * 50)


def test_autograd_threads_leave_no_tensor_behind() -> None:
    def work(i: int) -> torch.Tensor:
        w = data(D, 4, seed=i).requires_grad_()
        for _ in range(10):
            (w.exp().sum()).backward()
        assert w.grad is not None
        return w.grad.cpu()

    def alive() -> int:
        gc.collect()
        return counter("CreateLazyTensor") - counter("DestroyLazyTensor")

    before = alive()
    for i, got in enumerate(in_threads(work)):
        torch.testing.assert_close(got, data("cpu", 4, seed=i).exp() * 10)
    assert before == alive()
