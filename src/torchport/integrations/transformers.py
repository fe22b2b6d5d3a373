"""Hugging Face's ``Trainer``: what it does not keep of a device whose name it does not know."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from torchport.integrations.random_state import RandomState


class RandomStateCallback(TrainerCallback, ExportableState):
    """Saves the device's random state in the trainer's checkpoints, and brings it back when training resumes.

    The trainer does this by itself for the CPU and for a list of devices. The state is text in the checkpoint's
    ``trainer_state.json``, since a callback is not told from which folder training resumes.

    Example::

        trainer = Trainer(..., callbacks=[RandomStateCallback()])
        trainer.train(resume_from_checkpoint=True)
    """

    def __init__(self) -> None:
        self._resume_with: str | None = None

    def state(self) -> dict[str, dict[str, Any]]:
        """What the trainer writes into a checkpoint."""
        state = RandomState().state_dict()["state"]
        return {"args": {}, "attributes": {"random_state": b64encode(state.numpy().tobytes()).decode("ascii")}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes the state out of the checkpoint, if training goes on from one."""
        saved: Any = (state.stateful_callbacks or {}).get(type(self).__name__)
        self._resume_with = saved["attributes"]["random_state"] if saved and state.global_step > 0 else None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Brings it back before the first step, after everything that draws on the way there."""
        if self._resume_with is not None:
            saved = torch.frombuffer(bytearray(b64decode(self._resume_with)), dtype=torch.uint8)
            RandomState().load_state_dict({"state": saved})
            self._resume_with = None
