"""Ctrl-C at every n-th line of torchport that a training step runs: afterwards all is as if nothing had happened.

    python tests/sweeps/interrupts.py --every 29

A step of a small network with dropout and Adam is interrupted, then a fresh computation has to be right, and two steps
from the state before have to give the losses that they give undisturbed, bit by bit.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import torchport
from torchport.config import settings

D = settings.device_name
FOLDER = str(Path(torchport.__file__).parent)
NO_BYTECODE_RUNS = frozenset({"_answers"})
"""Functions that Python traces although no signal can reach them: see their docstrings."""


class Interruption:
    """A trace function that raises KeyboardInterrupt at the n-th line of torchport; without ``n`` it counts them."""

    def __init__(self, n: int | None = None) -> None:
        self.n = n
        self.count = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(FOLDER) or code.co_name in NO_BYTECODE_RUNS:
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.n:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line


class Training:
    """A network, its optimizer, and the state that it starts from again and again."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(16, 4), torch.randn(16, 2)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)).to(D)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.step()
        self.step()
        self._state = {k: v.cpu().clone() for k, v in self.model.state_dict().items()}
        self._optimizer_state = copy.deepcopy(self.optimizer.state_dict())
        self._random_state = getattr(torch, D).get_rng_state()

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.x.to(D)), self.y.to(D))
        loss.backward()
        self.optimizer.step()
        torchport.sync()
        return loss.item()

    def restore(self) -> None:
        self.model.load_state_dict(self._state)
        self.optimizer.load_state_dict(copy.deepcopy(self._optimizer_state))
        getattr(torch, D).set_rng_state(self._random_state)
        torchport.wait_device_ops()

    def two_steps(self) -> list[float]:
        self.restore()
        return [self.step(), self.step()]


def interrupted(training: Training, interruption: Interruption) -> bool:
    """Whether the interruption reached the program; it does not when it falls into a finalizer."""
    training.restore()
    sys.settrace(interruption)
    try:
        training.step()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=29, metavar="N", help="interrupt at every N-th line")
    every = parser.parse_args().every
    sys.unraisablehook = lambda unraisable: None  # what falls into a finalizer is printed by Python, and harmless
    training = Training()
    wanted = training.two_steps()
    counter = Interruption()
    interrupted(training, counter)
    reached = points = 0
    for n in range(1, counter.count, every):
        interruption = Interruption(n)
        points += 1
        reached += interrupted(training, interruption)
        fresh = (torch.ones(3, device=D) * 2 + 1).cpu()
        assert torch.equal(fresh, torch.full((3,), 3.0)), f"{interruption.where}: a fresh computation gives {fresh}"
        got = training.two_steps()
        assert got == wanted, f"{interruption.where}: the next steps give {got}, not {wanted}"
    print(
        f"{points} interruptions of a step of {counter.count} lines, {reached} of which reached the program: all well"
    )


if __name__ == "__main__":
    main()
