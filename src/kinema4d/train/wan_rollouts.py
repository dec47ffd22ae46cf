"""Validation of the full-scale model while it is trained: held-out clips drawn from noise, scored with our own metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from kinema4d.evaluate.geometry import chamfer
from kinema4d.evaluate.video import psnr, ssim
from kinema4d.types import Pointmap
from kinema4d.world.condition import Normalisation
from kinema4d.world.wan import cache
from kinema4d.world.wan.latents import PointStats, as_frames, decode, device_of
from kinema4d.world.wan.model import RobotWan
from kinema4d.world.wan.options import Sampling
from kinema4d.world.wan.sample import sample

NAMES = ("psnr_db", "ssim", "points_m", "cd_l1_m")
"""Of a clip, against its decoded latents (what the VAE loses is not the model's): colour, then geometry in metres."""


def scores(made: Tensor, truth: Tensor, vae: Any, stats: PointStats, extent: Normalisation) -> dict[str, float]:
    """Of latents [16,t,h,2w] against those of what happened."""
    both = []
    for latents in (made, truth):
        left, right = latents[None].float().chunk(2, -1)
        video = decode(vae, torch.cat([left, stats.invert(right)], -1)).cpu()
        colour, points = (as_frames(v) for v in video.chunk(2, -1))
        both.append(((255 * colour).round().clip(0, 255).astype(np.uint8), extent.invert(points)))
    (rgb, points), (want, places) = both
    a, b = (Pointmap(points=p, valid=np.ones(p.shape[:3], bool)) for p in (points, places))
    values = (
        psnr(rgb, want),
        float(np.mean([ssim(a, b) for a, b in zip(rgb, want, strict=True)])),
        float(np.linalg.norm(points - places, axis=-1).mean()),
        chamfer(a, b).l1,
    )
    return dict(zip(NAMES, values, strict=True))


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Held-out clips, shared out among the processes."""

    paths: Sequence[Path]
    """Their latents."""
    vae: Any
    """Of the base."""
    stats: PointStats
    """Of latents of pointmaps."""
    steps: int = 20
    """Of the flow."""

    def __call__(self, model: RobotWan, step: int) -> dict[str, float]:
        """Means over all clips, the same in every process. Every process calls this, and runs the model equally often, because one that
        holds only a share of the weights needs the others."""
        me, many = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
        device = device_of(model)
        mine = torch.zeros(len(NAMES) + 1, dtype=torch.float64)
        for k in range(-(-len(self.paths) // many)):
            i = me + k * many
            path = self.paths[min(i, len(self.paths) - 1)]
            latents = cache.read(path)
            told = latents.told(self.stats, model.variant).to(device)
            made = sample(model, told, sampling=Sampling(steps=self.steps), seed=i)[0].cpu()
            if i < len(self.paths):
                one = scores(made, latents.target(self.stats), self.vae, self.stats, cache.extent(path))
                mine += torch.tensor([*one.values(), 1.0], dtype=torch.float64)
        if many > 1:
            mine = mine.to(device)
            distributed.all_reduce(mine)
        return {n: float(v / mine[-1]) for n, v in zip(NAMES, mine[:-1], strict=True)}
