"""The device's random numbers as something that checkpoints save."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchport.lazy import rng


class RandomState:
    """The state of the device's generator, with the two methods that checkpoints ask for.

    A checkpoint that saves the host's generator and those of the devices that it knows by name does not know this one:
    after a resume, dropout would draw other numbers than without the interruption.

    Example::

        accelerator.register_for_checkpointing(RandomState())
    """

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The state now, a byte tensor on the CPU under ``"state"``.

        Raises:
            UnsupportedOperationError: the active backend does not tell it.
        """
        return {"state": rng.get_rng_state()}

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Puts the generator into that state, wherever ``torch.load(map_location=…)`` has put it.

        Raises:
            UnsupportedOperationError: the active backend has no such state.
        """
        rng.set_rng_state(state_dict["state"].cpu())
