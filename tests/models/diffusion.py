"""Diffusion: a step of training a U-Net of diffusers to tell the noise, and sampling with its schedulers."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.unets.unet_2d import UNet2DModel
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from torch import nn
from torch.nn import functional as F

from models.subjects import Subject, noise

_NOISE_LEVELS = 100
SCHEDULERS = {"DDPM": DDPMScheduler, "DDIM": DDIMScheduler}


class NoisePrediction(nn.Module):
    """Adds noise of random levels to pictures, and predicts it."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = DDPMScheduler(num_train_timesteps=_NOISE_LEVELS)
        self.network = UNet2DModel(
            sample_size=16,
            layers_per_block=1,
            block_out_channels=(8, 16),
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            dropout=0.1,
        )
        # Softmax does not see a key's bias, so its gradient is what rounding leaves of zero, and AdamW makes whole
        # steps of it. It rounds elsewhere: PyTorch's formula of group norm has another layout for each kind of device.
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(not name.endswith("to_k.bias"))

    def forward(self, pictures: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, and the noise that was predicted."""
        added = torch.randn_like(pictures)
        levels = torch.randint(0, _NOISE_LEVELS, (len(pictures),), device=pictures.device)
        predicted = self.network(self.scheduler.add_noise(pictures, added, levels), levels).sample
        return {"loss": F.mse_loss(predicted, added), "predicted": predicted}


def sampled(model: NoisePrediction, scheduler: Any, device: str, steps: int) -> torch.Tensor:
    """Pictures out of noise, in as many steps."""
    scheduler = scheduler(num_train_timesteps=_NOISE_LEVELS)
    scheduler.set_timesteps(steps, device=device)
    x = torch.randn(2, 3, 16, 16, device=device)
    with torch.no_grad():
        for level in scheduler.timesteps:
            x = scheduler.step(model.network(x, level).sample, level, x).prev_sample
    return x


SUBJECTS = (
    Subject(
        "U-Net of diffusers",
        lambda _: NoisePrediction(),
        lambda: {"pictures": noise(2, 3, 16, 16)},
        attention=("sdpa",),
        checkpoints=False,
        own_kernels=True,  # products with operands that are transposed are chosen by whether there is a gradient
    ),
)
