"""Long and odd training runs on the lazy device, each against the same run on the CPU: a command.

    python tests/sweeps/long_runs.py --write docs/support      # everything, and the page
    python tests/sweeps/long_runs.py changing_rate --scale 0.1

Every run says what it wants of itself besides equal numbers: flat memory, no late compile, no second execution. The
command ends with 1 if one misses it.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import math
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torchport
from torchport.config import settings

D = settings.device_name
MEBIBYTE = 2**20
GROWTH_MIB = 4.0
"""By how much a process may be larger at the end than after a tenth of the steps: the allocator's noise."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found: figures in words, and what is wrong, if anything."""

    figures: str
    faults: tuple[str, ...] = ()


def resident_mib() -> float:
    """The resident set size of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / MEBIBYTE


def count(name: str) -> int:
    """A counter of the metrics, with everything that was launched finished."""
    torchport.wait_device_ops()
    return int(torchport.metrics.counter_value(name) or 0)


def faults(**wanted: bool) -> tuple[str, ...]:
    """The names of what does not hold."""
    return tuple(name.replace("_", " ") for name, holds in wanted.items() if not holds)


def network(D: str, width: int = 16) -> nn.Sequential:
    """The same small network on every device."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1)).to(D)


def batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 8, generator=generator)
    return x, x.square().mean(1, keepdim=True)


def same(got: nn.Module, wanted: nn.Module) -> bool:
    """Whether all weights are within PyTorch's own tolerance for float32."""
    pairs = zip(got.state_dict().values(), wanted.state_dict().values(), strict=True)
    return all(torch.allclose(g.cpu(), w, rtol=1.3e-6, atol=1e-5) for g, w in pairs)


def rate(step: int) -> float:
    """Another number at every step."""
    return 0.05 + 0.04 * math.sin(step)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One training step; gives the loss."""
    loss: torch.Tensor = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def trained(
    steps: int, make: Callable[[nn.Module], torch.optim.Optimizer], D: str, note: Callable[[int], None]
) -> nn.Module:
    """The network after that many steps, with a learning rate that changes at each."""
    model = network(D)
    optimizer = make(model)
    x, y = (t.to(D) for t in batch(32, 0))
    for i in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(i) / 10
        loss = step(model, optimizer, x, y)
        if i % 100 == 99:
            loss.item()
        note(i)
    return model


def _changing_rate(steps: int, make: Callable[[nn.Module], torch.optim.Optimizer]) -> Outcome:
    sizes: list[float] = []
    compiles: list[int] = []

    def note(i: int) -> None:
        if i == 3:
            compiles.append(count("UncachedCompile"))
        if (i + 1) % max(1, steps // 10) == 0:
            gc.collect()
            sizes.append(resident_mib())

    got = trained(steps, make, D, note)
    late = count("UncachedCompile") - compiles[0]
    growth = sizes[-1] - sizes[0]
    wanted = trained(steps, make, "cpu", lambda i: None)
    return Outcome(
        f"{growth:+.1f} MiB from a tenth of the steps to the end; {late} compiles after the fourth step",
        faults(equal_weights=same(got, wanted), flat_memory=growth <= GROWTH_MIB, no_late_compile=late == 0),
    )


def changing_rate_sgd(steps: int) -> Outcome:
    """SGD with momentum, another learning rate at every step."""
    return _changing_rate(steps, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9))


def changing_rate_adam(steps: int) -> Outcome:
    """AdamW, another learning rate at every step."""
    return _changing_rate(steps, lambda m: torch.optim.AdamW(m.parameters(), lr=0.1))


def no_barrier(steps: int) -> Outcome:
    """A loop without an optimizer and without a barrier, nothing read until the end."""
    sizes: list[float] = []

    def run(D: str) -> torch.Tensor:
        x, y = (t.to(D) for t in batch(32, 0))
        w = torch.zeros(8, 1, device=D, requires_grad=True)
        for i in range(steps):
            (grad,) = torch.autograd.grad(nn.functional.mse_loss(x @ w, y), w)
            with torch.no_grad():
                w -= 0.01 * grad
            if D != "cpu" and (i + 1) % max(1, steps // 10) == 0:
                gc.collect()
                sizes.append(resident_mib())
        return w.detach().cpu()

    before = count("Execute")
    got, wanted = run(D), run("cpu")
    half = len(sizes) // 2
    launches, growth = count("Execute") - before, max(sizes[half:]) - max(sizes[:half])
    return Outcome(
        f"{growth:+.1f} MiB from the peak of the first half to that of the second; {launches} launches, since a trace "
        f"is cut at {settings.max_pending_nodes} operations",
        faults(equal_weights=torch.allclose(got, wanted), flat_memory=growth <= GROWTH_MIB),
    )


def batch_sizes(steps: int) -> Outcome:
    """Training with a batch of another size at every step."""
    before = count("UncachedCompile")

    def run(D: str) -> nn.Module:
        model = network(D, width=17)  # a network that no run before this one has compiled
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for i in range(steps):
            step(model, optimizer, *(t.to(D) for t in batch(3 + 7 * i % 251, i)))
        return model

    got, wanted = run(D), run("cpu")
    compiles = count("UncachedCompile") - before
    return Outcome(f"{compiles} compiles", faults(equal_weights=same(got, wanted), at_most_five_compiles=compiles <= 5))


def reads(steps: int) -> Outcome:
    """`.item()` in the middle of every step and again after it."""
    executed: list[int] = []

    def run(D: str) -> list[float]:
        model = network(D)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = (t.to(D) for t in batch(32, 0))
        losses = []
        for i in range(steps):
            loss = nn.functional.mse_loss(model(x), y)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if D != "cpu" and i == steps - 1:
                executed.append(count("Execute"))
            losses.append(loss.item() + loss.item())
            if D != "cpu" and i == steps - 1:
                executed.append(count("Execute"))
        return losses

    before = count("Execute")
    got, wanted = run(D), run("cpu")
    launches, again = executed[0] - before, executed[1] - executed[0]
    close = all(math.isclose(g, w, rel_tol=1e-5, abs_tol=1e-6) for g, w in zip(got, wanted, strict=True))
    return Outcome(
        f"{launches} launches, two a step; {again} for reading what was read before",
        faults(equal_losses=close, two_launches_a_step=launches <= 2 * steps + 1, nothing_computed_twice=again == 0),
    )


def threads(steps: int) -> Outcome:
    """Four threads, each training a network of its own."""
    trained: list[nn.Module | None] = [None] * 4
    errors: list[BaseException] = []
    before = count("UncachedCompile")

    def run(model: nn.Module, i: int) -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = (t.to(next(model.parameters()).device) for t in batch(16 + i, i))
        for _ in range(steps):
            step(model, optimizer, x, y)
        return model

    def work(model: nn.Module, i: int) -> None:
        try:
            trained[i] = run(model, i)
        except BaseException as error:  # noqa: BLE001 - told by the caller
            errors.append(error)

    workers = [threading.Thread(target=work, args=(network(D), i)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    equal = not errors and all(same(m, run(network("cpu"), i)) for i, m in enumerate(trained) if m is not None)
    compiles = count("UncachedCompile") - before
    return Outcome(
        f"{len(errors)} errors; {compiles} compiles",
        faults(no_error=not errors, equal_weights=equal, at_most_five_compiles=compiles <= 5),
    )


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that are made in the worker, where nothing may start a backend."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch(1, i)
        return x[0], y[0]


def workers(steps: int) -> Outcome:
    """A DataLoader with two worker processes."""

    def run(D: str) -> nn.Module:
        model = network(D)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, y in DataLoader(Squares(16 * steps), batch_size=16, num_workers=2):
            step(model, optimizer, x.to(D), y.to(D))
        return model

    return Outcome("workers that wait for nothing", faults(equal_weights=same(run(D), run("cpu"))))


def exceptions(steps: int) -> Outcome:
    """An exception, and Ctrl-C, in the middle of every third step, which is then done again."""
    sizes: list[float] = []

    def run(D: str) -> nn.Module:
        model = network(D)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = (t.to(D) for t in batch(32, 0))
        for i in range(steps):
            if i % 3 == 0:
                error = (KeyboardInterrupt, ValueError)[i % 2]

                def stop(grad: torch.Tensor, error: type[BaseException] = error) -> None:
                    raise error

                hook = next(model.parameters()).register_hook(stop)
                try:
                    step(model, optimizer, x, y)
                except error:
                    hook.remove()
            step(model, optimizer, x, y)
            if D != "cpu" and (i + 1) % max(1, steps // 10) == 0:
                gc.collect()
                sizes.append(resident_mib())
        return model

    got, wanted = run(D), run("cpu")
    growth = sizes[-1] - sizes[0]
    return Outcome(
        f"{growth:+.1f} MiB from a tenth of the steps to the end",
        faults(equal_weights=same(got, wanted), flat_memory=growth <= GROWTH_MIB),
    )


RUNS: dict[Callable[[int], Outcome], int] = {
    changing_rate_sgd: 10_000,
    changing_rate_adam: 10_000,
    no_barrier: 50_000,
    batch_sizes: 200,
    reads: 2_000,
    threads: 1_000,
    workers: 200,
    exceptions: 1_000,
}


def render(rows: list[tuple[str, int, float, Outcome]]) -> str:
    """The page."""
    lines = [
        "# Long and odd runs",
        "",
        f"Generated by `python tests/sweeps/long_runs.py --write docs/support` on {datetime.date.today()}, torch "
        f"{torch.__version__}, Python {platform.python_version()}, one thread, interpreter backend; do not edit.",
        "Each run is compared with the same run on the CPU: weights or losses are equal within PyTorch's tolerance.",
        "",
        "| run | steps | seconds, both | found | as wanted |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {text} | {steps} | {seconds:.0f} | {o.figures} | {'not: ' + ', '.join(o.faults) if o.faults else 'yes'} |"
        for text, steps, seconds, o in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [run.__name__ for run in RUNS]
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"{', '.join(names)}; all if none is named")
    parser.add_argument("--scale", type=float, default=1.0, help="a factor for the numbers of steps")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write long_runs.md there")
    arguments = parser.parse_args()
    for name in arguments.runs:
        if name not in names:
            parser.error(f"there is no run {name!r}; there are {', '.join(names)}")
    torch.set_num_threads(1)
    settings.cache_dir = "off"  # what an earlier run left there would hide a compile
    rows = []
    for run, steps in RUNS.items():
        if arguments.runs and run.__name__ not in arguments.runs:
            continue
        steps = max(10, int(steps * arguments.scale))
        start = time.monotonic()
        outcome = run(steps)
        rows.append(((run.__doc__ or "").rstrip("."), steps, time.monotonic() - start, outcome))
        print(run.__name__, steps, f"{rows[-1][2]:.0f} s", outcome, flush=True)
    if arguments.write:
        (arguments.write / "long_runs.md").write_text(render(rows), encoding="utf-8")
    return 1 if any(outcome.faults for *_, outcome in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
