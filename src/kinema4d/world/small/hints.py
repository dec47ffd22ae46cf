"""What tells of the robot beside the picture, as tokens that are read by cross-attention: robot patches, actions, or words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kinema4d.world.small.diffusion_config import ACTION, MIXED, WORDS, DiffusionConfig, manner

if TYPE_CHECKING:
    from kinema4d.world.small.diffusion import Known

TIME = 8
"""Waves that tell the time of a patch or an action."""


class Hints(nn.Module):
    """From patches, actions or numbers of words to tokens; those that have a time know it."""

    def __init__(self, config: DiffusionConfig, channels: int) -> None:
        super().__init__()
        every = MIXED if config.control == "mixed" else (config.control,)
        inputs = {"actions": ACTION * config.patch[0], "nothing": 1, "patches": 3 * config.pixels}
        self.embed = nn.ModuleDict(
            {
                n: nn.Embedding(WORDS, channels) if n == "words" else nn.Linear(inputs[n], channels)
                for n in sorted({*map(manner, every)})
            }
        )
        self.when = nn.Linear(2 * TIME, channels)

    def forward(self, known: Known) -> Tensor:
        """[b,k,channels]."""
        x = self.embed[known.told](known.hints)
        if known.told not in ("patches", "actions"):
            return x
        angle = known.when[..., None].float() * 2.0 ** -torch.arange(TIME)
        when = self.when(torch.cat([angle.sin(), angle.cos()], -1))
        return x + when.repeat_interleave(x.shape[1] // when.shape[1], 1)
