"""A graph, compiled by the interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from torchport.backend.computation import Computation
from torchport.backend.data import DONATED, BackendData
from torchport.backend.device import BackendDevice
from torchport.backends.interpreter.donation import plan_donation
from torchport.backends.interpreter.program import Program, build_program
from torchport.backends.interpreter.recovery import run_node_by_node
from torchport.backends.interpreter.schedule import Schedule, schedule
from torchport.backends.interpreter.steps import Step
from torchport.backends.interpreter.values import Values
from torchport.ir.call import Call


class InterpretedComputation(Computation):
    """A computation with its program, and a second one that writes into donated arguments where that is possible.

    Args:
        source: the computation as it was lowered.
        lower: makes the step of a call.
        generator: what its random operators draw from.
        schedule_text: the schedules, where they were made before (:meth:`schedule_text`).

    Raises:
        ValueError: the schedules are not of this computation.
    """

    def __init__(
        self,
        source: Computation,
        lower: Callable[[Call], Step],
        generator: torch.Generator,
        schedule_text: str | None = None,
    ) -> None:
        super().__init__(source.name, source.graph, source.devices, source.aliases, source.cause)
        self.device: BackendDevice = source.devices[0]
        self._values = Values(source.graph, lower)
        self._generator = generator
        self._has_random = any(s is not None and s.is_random for s in self._values.steps)
        self._parameter_count = super().parameter_count
        self._plan, donating = self._schedules() if schedule_text is None else _parse_schedules(schedule_text)
        self.program: Program = build_program(self._values, self._plan, self.device)
        self.donating_program: Program | None = None
        if donating is not None:
            self.donating_program = build_program(self._values, donating, self.device)
        self._unclaimed: tuple[list[BackendData], list[BackendData]] | None = None

    def _schedules(self) -> tuple[Schedule, Schedule | None]:
        """The schedule, and the one for donated arguments where something is written into them."""
        donation = plan_donation(self._values, self.aliases) if self.aliases else None
        donating = schedule(self._values, donation) if donation is not None and donation.parameters else None
        return schedule(self._values), donating

    def schedule_text(self) -> str:
        """The schedules as text, for a process that has the same graph."""
        donating = self.donating_program
        return json.dumps([self._plan.as_json(), None if donating is None else donating.schedule.as_json()])

    @property
    def parameter_count(self) -> int:
        """How many arguments it takes: tensors, then numbers."""
        return self._parameter_count

    @property
    def source(self) -> str:
        """The text of the program, and of the one for donated arguments where there is one."""
        if self.donating_program is None:
            return self.program.source
        return f"{self.program.source}\n# when arguments are donated\n{self.donating_program.source}"

    def execute(self, arguments: list[BackendData]) -> tuple[list[BackendData], Program | None]:
        """The results, and the program that ran; ``None`` when the graph was run node by node.

        Raises:
            ValueError: an argument has neither a value nor an error, or there are too many or too few.
        """
        if len(arguments) != self._parameter_count:
            raise ValueError(
                f"{self.name!r} takes {self._parameter_count} arguments ({', '.join(self.parameter_names)}); "
                f"{len(arguments)} were given"
            )
        handles = []
        for i, argument in enumerate(arguments):
            if argument.handle is None:
                if argument.error is None:
                    unclaimed = self._claim(arguments)
                    if unclaimed is not None:
                        return unclaimed, self.donating_program
                    raise ValueError(
                        f"argument {i} of {self.name!r} has no value: {argument!r}. Wait for what computes it first; "
                        "a donated argument has lost its value."
                    )
                return self._recover(arguments), None
            handles.append(argument.handle)
        program = self._choose(arguments)
        state = self._generator.get_state() if self._has_random else None
        try:
            results = program.run(arguments, handles, lambda found: self._keep(arguments, found))
            self._unclaimed = None
            return results, program
        except Exception:  # noqa: BLE001 - any kernel's error: running node by node finds it again, and says where
            self._restore(state)
        except BaseException:
            self._restore(state)
            raise
        handles.clear()
        return self._recover(arguments), None

    def _keep(self, arguments: list[BackendData], results: list[BackendData]) -> None:
        """Ctrl-C may take effect before the caller has the results, and the donated arguments cannot be had again."""
        self._unclaimed = (list(arguments), results)

    def _claim(self, arguments: list[BackendData]) -> list[BackendData] | None:
        """The results of an execution with these arguments that Ctrl-C kept from its caller."""
        kept, self._unclaimed = self._unclaimed, None
        if kept is None or any(a is not b for a, b in zip(kept[0], arguments, strict=True)):
            return None
        return kept[1]

    def _choose(self, arguments: list[BackendData]) -> Program:
        program = self.donating_program
        if program is None or any(arguments[p].info is not DONATED for p in program.schedule.donated.values()):
            return self.program
        tensors = arguments[: len(self._values.parameters)]
        # One buffer given twice cannot be overwritten while it is read.
        return program if len({id(a.handle) for a in tensors}) == len(tensors) else self.program

    def _restore(self, state: torch.Tensor | None) -> None:
        if state is not None:
            self._generator.set_state(state)

    def _recover(self, arguments: list[BackendData]) -> list[BackendData]:
        return run_node_by_node(self._values, self._plan, arguments, self.device)


def _parse_schedules(text: str) -> tuple[Schedule, Schedule | None]:
    try:
        plan, donating = json.loads(text)
        return Schedule.from_json(plan), None if donating is None else Schedule.from_json(donating)
    except (KeyError, TypeError) as error:
        raise ValueError(f"these are no schedules: {text[:80]!r}") from error
