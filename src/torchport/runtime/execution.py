"""Launched computations: run in order, on a thread of the runtime or on that of whoever waits for one.

The queue is bounded, so a program that traces faster than its backend executes is held back instead of piling up work.
A reader that finds the queue idle runs its computation itself: a thread switch costs more than a small graph.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from torchport import metrics
from torchport.backend import DONATED, BackendData, BackendDevice, BackendImplInterface, Computation
from torchport.config import settings
from torchport.errors import ExecutionError
from torchport.ir.location import Location
from torchport.runtime.error_kinds import execution_error

_EXECUTE = metrics.counter("Execute")


class Undo(Protocol):
    """Gives whoever waits for a result the contents from before."""

    failed: Any

    def __call__(self) -> None:
        """Does it."""


class Duration:
    """How long a computation took the last time it ran, in seconds."""

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s = math.inf


class Execution:
    """One launched computation: what it runs, with what, and the placeholders that its results go to.

    Attributes:
        undo: by result, what gives those who wait for it their contents from before, should it fail.
    """

    __slots__ = (
        "_again",
        "_done",
        "_held",
        "arguments",
        "backend",
        "computation",
        "device",
        "donated",
        "duration",
        "location",
        "results",
        "threads",
        "undo",
    )

    def __init__(
        self,
        backend: BackendImplInterface,
        computation: Computation,
        arguments: list[BackendData],
        results: Sequence[BackendData],
        device: BackendDevice,
        location: Location = None,
        donated: Sequence[int] = (),
        duration: Duration | None = None,
    ) -> None:
        self.backend = backend
        self.computation = computation
        self.arguments = arguments
        self.results = results
        self.device = device
        self.location = location
        self.donated = donated
        self.duration = duration or Duration()
        self.threads = torch.get_num_threads()
        self.undo: Mapping[int, Sequence[Undo]] = {}
        self._again: dict[int, ExecutionError] = {}
        self._held: Counter[int] | None = None
        self._done = False
        for data in results:
            data.info = self

    def holds(self, value: Any) -> int:
        """How many steps of ``undo`` refer to a value as the contents that may fail."""
        if self._held is None:
            self._held = Counter(id(step.failed) for steps in self.undo.values() for step in steps)
        return self._held[id(value)]

    @property
    def done(self) -> bool:
        """Whether it has ended, with values or with errors."""
        return self._done

    def run(self) -> None:
        """Executes, and gives every result its value or its error.

        Only a ``BaseException`` that is no error escapes, and leaves it ready to run again.
        """
        for i in self.donated:
            self.arguments[i].info = DONATED
        start = time.perf_counter()
        try:
            outcome = self._execute()
            if len(outcome) != len(self.results):
                raise TypeError(
                    f"{type(self.backend).__name__}.execute_computation() has to return one datum per result, "
                    f"{len(self.results)}; it returned {len(outcome)}"
                )
            for data, result in zip(self.results, outcome, strict=True):
                if result.error is not None:
                    data.error = result.error
                else:
                    data.assign(result)
        except Exception as error:  # noqa: BLE001 - a stranger's backend: whatever it raises belongs to the reader of its results
            failure = self._failure(error)
            for data in self.results:
                data.error = failure
        for i, data in enumerate(self.results):
            if data.error is not None:
                data.error = self._told_again(data.error)
                _note(data.error, self.undo.get(i, ()))
            data.info = None
        self._again = {}
        self.undo = {}
        self._done = True
        self.arguments = []
        self.duration.last_s = time.perf_counter() - start

    def _told_again(self, error: BaseException) -> BaseException:
        """An error that the program was told of already spoils a new computation: that is told anew."""
        if not getattr(error, "raised", False):
            return error
        if id(error) not in self._again:
            told = ExecutionError(
                f"{self.computation.name} depends on a value that was lost to an earlier error: {error}"
            )
            self._again[id(error)] = told
        return self._again[id(error)]

    def _execute(self) -> list[BackendData]:
        error: Exception | None = getattr(self.computation, "error", None)
        if error is not None:
            raise error
        _EXECUTE.value += 1
        spoiled = {i for i, data in enumerate(self.arguments) if data.error is not None}
        if spoiled and not self.backend.capabilities.error_recovery:
            return self._execute_unspoiled(spoiled)
        return self.backend.execute_computation(self.computation, self.arguments, self.device)

    def _execute_unspoiled(self, spoiled: set[int]) -> list[BackendData]:
        """What does not depend on a spoiled argument is computed; the rest takes over that argument's error."""
        graph = self.computation.graph
        cause: dict[int, BaseException] = {}
        for i, leaf in enumerate(graph.parameters):
            if i in spoiled:
                error = self.arguments[i].error
                assert error is not None
                cause[id(leaf)] = error
        for node in graph.nodes:
            for value in node.operands:
                if id(value.node) in cause:
                    cause.setdefault(id(node), cause[id(value.node)])
        kept = [v for v in graph.results if id(v.node) not in cause]
        values: dict[int, BackendData] = {}
        if kept:
            needed = type(graph).of_results(kept)
            context = self.backend.create_lowering_context(f"{self.computation.name}-rest", self.device, needed.nodes)
            for value in kept:
                context.add_result(value)
            (compiled,) = self.backend.compile([context.build()])
            position = {id(n): i for i, n in enumerate(graph.parameters)}
            numbers = {(id(n), i): p for p, (n, i) in enumerate(graph.numbers, len(graph.parameters))}
            arguments = [self.arguments[position[id(n)]] for n in compiled.graph.parameters]
            arguments += [self.arguments[numbers[id(n), i]] for n, i in compiled.graph.numbers]
            outcome = self.backend.execute_computation(compiled, arguments, self.device)
            values = dict(zip(map(id, kept), outcome, strict=True))
        results = []
        for value in graph.results:
            data = values.get(id(value))
            if data is None:
                data = BackendData(self.device, value.shape)
                data.error = cause[id(value.node)]
            results.append(data)
        return results

    def _failure(self, error: Exception) -> ExecutionError:
        if isinstance(error, ExecutionError):
            return error
        where = f", launched at {self.location}" if self.location is not None else ""
        message = f"{self.computation.name} failed{where}: {type(error).__name__}: {error}"
        failure = execution_error(message, error)
        failure.add_note("".join(traceback.format_exception(error)))
        return failure


class _Failure:
    """What is known of an error that spoiled data: whether the program was told, and how to go back."""

    __slots__ = ("error", "undo")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.undo: list[Callable[[], None]] = []


_unraised: dict[int, _Failure] = {}


def _note(error: BaseException, undo: Sequence[Callable[[], None]]) -> None:
    # An error is kept as long as the data that it spoiled; tracebacks would keep the frames of the reader, and with
    # them its tensors, as long.
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    _unraised.setdefault(id(error), _Failure(error)).undo.extend(undo)


def raise_once(error: BaseException) -> None:
    """Raises an error of a computation the first time; afterwards says that what it spoiled has no value.

    Raises:
        ExecutionError: always.
    """
    failure = _unraised.pop(id(error), None)
    if failure is not None:
        error.raised = True  # type: ignore[attr-defined]
        for step in reversed(failure.undo):
            step()
        # A copy: the stored one must not keep the frames, and so the tensors, of those who were told.
        told = execution_error(str(error), error)
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        try:
            raise told
        finally:
            del told, failure  # or this frame and the exception would keep each other, and the caller's tensors
    raise ExecutionError(f"this tensor has no value: it depends on a computation that failed earlier: {error}")


class Executor:
    """The queue of one process."""

    def __init__(self) -> None:
        self._queue: deque[Execution] = deque()
        self._condition = threading.Condition()
        self._running = False
        self._worker: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """Whether everything that was launched has ended."""
        return not self._queue and not self._running

    def enqueue(self, execution: Execution) -> None:
        """Takes its place in the order; :meth:`advance` has to follow.

        Called while the trace is locked, so that computations run in the order in which they were launched, whichever
        of several threads gets on first.
        """
        with self._condition:
            self._queue.append(execution)

    def advance(self, execution: Execution, wake: bool = True) -> None:
        """Sees to it that it runs; returns when the queue is within its bound.

        Args:
            execution: one that was enqueued.
            wake: whether another thread is to run it; not when the caller waits for it next.
        """
        if not settings.async_execution or self._runs_inline(execution):
            self.wait(execution)
            return
        with self._condition:
            if wake:
                if self._worker is None:
                    self._start()
                self._condition.notify_all()
            while len(self._queue) > settings.launch_queue_size:
                if not self._help():
                    self._condition.wait()

    @staticmethod
    def _runs_inline(execution: Execution) -> bool:
        if execution.backend.capabilities.concurrent_execution:
            return False
        operations = len(execution.computation.graph)
        return execution.duration.last_s * 1e6 < settings.inline_execution_us * operations

    def wait(self, execution: Execution) -> None:
        """Returns when it has ended; runs what is before it where no other thread does."""
        self._wait_until(lambda: execution.done)

    def wait_all(self) -> None:
        """Returns when everything that was launched has ended."""
        self._wait_until(lambda: not self._queue and not self._running)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        with self._condition:
            while not condition():
                if not self._help():
                    self._condition.wait()

    def _help(self) -> bool:
        """Runs the head of the queue on this thread, unless another runs already.

        Ctrl-C may interrupt it here: a backend that writes to donated buffers puts that off until they are written,
        and the computation stays at the head of the queue.
        """
        if self._running or not self._queue:
            return False
        self._run_head()
        return True

    def _run_head(self) -> None:
        execution = self._queue.popleft()
        self._running = True
        self._condition.release()
        try:
            execution.run()
        except BaseException:
            self._queue.appendleft(execution)
            raise
        finally:
            self._condition.acquire()
            self._running = False
            self._condition.notify_all()

    def _start(self) -> None:
        self._worker = threading.Thread(target=self._work, name="torchport-execute", daemon=True)
        self._worker.start()

    def _work(self) -> None:
        with self._condition:
            while True:
                if self._queue and not self._running:
                    # OpenMP's number of threads belongs to each thread: the program has set that of its own.
                    if self._queue[0].threads != torch.get_num_threads():
                        torch.set_num_threads(self._queue[0].threads)
                    self._run_head()
                else:
                    self._condition.wait()

    def _before_fork(self) -> None:
        self.wait_all()
        self._condition.acquire()

    def _after_fork_in_parent(self) -> None:
        self._condition.release()

    def _after_fork_in_child(self) -> None:
        # The worker did not come along; everything had ended, so a new one starts when it is needed.
        self._condition = threading.Condition()
        self._running = False
        self._worker = None


executor = Executor()
"""The queue that all launches of this process go through."""

os.register_at_fork(
    before=executor._before_fork,
    after_in_parent=executor._after_fork_in_parent,
    after_in_child=executor._after_fork_in_child,
)


def _finish_at_exit() -> None:
    """Ends what runs: a thread that is inside a compiled program when the interpreter goes away aborts the process."""
    executor.wait_all()


atexit.register(_finish_at_exit)


def wait_device_ops() -> None:
    """Waits until everything that was launched has ended.

    Raises:
        ExecutionError: a computation failed and nothing has raised its error yet.
    """
    executor.wait_all()
    for failure in list(_unraised.values()):
        raise_once(failure.error)
