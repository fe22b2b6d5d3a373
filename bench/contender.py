"""One contender of ``train_steps.py`` in a process of its own: reads requests as JSON lines, answers each with one.

Two lazy devices, a compiler's threads and their caches in one process would disturb each other, and PyTorch's own
lazy core cannot be switched off again. So each has a process, and only the one that was asked runs at any time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from workloads import Training

WARM_UP_STEPS = 20  # past the traces of a captured step, at calls 1, 2, 3, 4, 8 and 16


class Contender:
    """Eager PyTorch, and what the others change."""

    device = "cpu"
    traces = False

    def build(self, name: str) -> Training:
        return Training(name, self.device)

    def after_step(self) -> None:
        """What the contender's users write at the end of a step."""

    def without_barrier(self) -> AbstractContextManager[object]:
        """Inside, a step does not launch what it traced."""
        return nullcontext()

    def barrier_and_wait(self) -> None:
        """Launch what a step left pending, and wait for it."""
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        return {}


class Compiled(Contender):
    """``torch.compile(model)``: forward and backward compiled, the optimizer eager, as its users have it."""

    def build(self, name: str) -> Training:
        torch._dynamo.reset()
        return Training(name, self.device, torch.compile)


class LazyCore(Contender):
    """PyTorch's own lazy core with its TorchScript backend."""

    device = "lazy"
    traces = True

    def __init__(self) -> None:
        import torch._lazy
        import torch._lazy.metrics
        import torch._lazy.ts_backend

        torch._lazy.ts_backend.init()

    def after_step(self) -> None:
        torch._lazy.mark_step()

    def barrier_and_wait(self) -> None:
        torch._lazy.mark_step(wait=True)  # wait=False waits too
        torch._lazy.wait_device_ops()

    def counters(self) -> dict[str, int]:
        metrics = torch._lazy.metrics
        return {name: metrics.counter_value(name) for name in metrics.counter_names()}


class Port(Contender):
    """torchport; the barrier is the one that follows ``optimizer.step()`` by itself."""

    traces = True

    def __init__(self) -> None:
        import torchport
        from torchport.config import override, settings

        self.torchport, self.override, self.device = torchport, override, settings.device_name

    def without_barrier(self) -> AbstractContextManager[object]:
        return self.override(barrier_after_optimizer_step=False)

    def barrier_and_wait(self) -> None:
        self.torchport.sync()
        self.torchport.wait_device_ops()

    def counters(self) -> dict[str, int]:
        metrics = self.torchport.metrics
        return {name: metrics.counter_value(name) for name in metrics.counter_names()}


class CompiledStep(Contender):
    """``torch.compile`` around the whole step: forward, backward and optimizer."""

    def build(self, name: str) -> Training:
        torch._dynamo.reset()
        training = Training(name, self.device)
        training.step = torch.compile(training.step)  # type: ignore[method-assign]
        return training


class Captured(Port):
    """torchport with the step under ``torchport.capture``, on one of its backends."""

    traces = False

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.torchport.use(backend)

    def build(self, name: str) -> Training:
        training = Training(name, self.device)
        training.step = self.torchport.capture(training.step, verify_every=1 << 40)  # type: ignore[method-assign]
        return training


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "eager": Contender,
    "lazy_core": LazyCore,
    "torch_compile": Compiled,
    "torch_compile_step": CompiledStep,
    "port": Port,
    "captured_interpreter": partial(Captured, "interpreter"),
    "captured_inductor": partial(Captured, "inductor"),
    "captured_xla": partial(Captured, "xla"),
    "captured_iree": partial(Captured, "iree"),
}


class Session:
    """Answers requests: ``prepare`` a model, ``time`` whole steps, ``trace`` steps and barriers apart."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.training: Training

    def prepare(self, model: str) -> dict[str, Any]:
        """Build, warm up; the losses of the first steps, and the seconds of one step."""
        self.training = self.contender.build(model)
        losses, start_s = [], 0.0
        for _ in range(WARM_UP_STEPS):
            start_s = time.perf_counter()
            loss = self.training.step()
            self.contender.after_step()
            losses.append(loss.item())
        return {"losses": losses, "step_s": time.perf_counter() - start_s}

    def time(self, steps: int) -> dict[str, Any]:
        """Seconds per step of an ordinary loop whose last loss is read."""
        gc.collect()
        start_s = time.perf_counter()
        for _ in range(steps):
            loss = self.training.step()
            self.contender.after_step()
        loss.item()
        return {"step_s": (time.perf_counter() - start_s) / steps}

    def trace(self, steps: int) -> dict[str, Any]:
        """Seconds of tracing and of the barrier per step, apart, and the counters' growth per step."""
        contender = self.contender
        if not contender.traces:
            return {}
        with contender.without_barrier():
            for _ in range(2):  # without the automatic barrier the graph may be another one: compile it first
                self.training.step()
                contender.barrier_and_wait()
            gc.collect()
            before = contender.counters()
            trace_s = barrier_s = 0.0
            for _ in range(steps):
                start_s = time.perf_counter()
                self.training.step()
                traced_s = time.perf_counter()
                contender.barrier_and_wait()
                trace_s += traced_s - start_s
                barrier_s += time.perf_counter() - traced_s
        growth = {name: value - before.get(name, 0) for name, value in contender.counters().items()}
        return {
            "trace_s": trace_s / steps,
            "barrier_s": barrier_s / steps,
            "ops": sum(n for name, n in growth.items() if name.startswith("lazy::")) / steps,
            "fallbacks": sum(n for name, n in growth.items() if name.startswith("aten::")) / steps,
            "compiles": growth.get("UncachedCompile", 0),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    # Compilers print; the answers keep the real stdout for themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(arguments.threads)
    session = Session(CONTENDERS[arguments.contender]())
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(session, request.pop("do"))(**request)
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
