"""Validation of the full-scale model while it is trained: held-out clips are drawn from noise and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from kinema4d.world.condition import Normalisation
from kinema4d.world.wan import cache
from kinema4d.world.wan.latents import PointStats, as_frames, decode, device_of
from kinema4d.world.wan.model import RobotWan
from kinema4d.world.wan.options import Sampling
from kinema4d.world.wan.sample import sample

Judge = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], dict[str, float]]
"""Pictures, true pictures, points, true points (metres) to scores: ``kinema4d.evaluate.decoded.decoded_scores``."""


def shown(latents: Tensor, vae: Any, stats: PointStats, extent: Normalisation) -> tuple[np.ndarray, np.ndarray]:
    """Pictures and points in metres of latents [16,t,h,2w]."""
    left, right = latents[None].float().chunk(2, -1)
    video = decode(vae, torch.cat([left, stats.invert(right)], -1)).cpu()
    colour, points = (as_frames(v) for v in video.chunk(2, -1))
    return (255 * colour).round().clip(0, 255).astype(np.uint8), extent.invert(points)


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Held-out clips, shared out among the processes. They are compared with their own decoded latents: what the VAE loses is not the
    model's."""

    paths: Sequence[Path]
    """Their latents."""
    vae: Any
    """Of the base."""
    stats: PointStats
    """Of latents of pointmaps."""
    judge: Judge
    """How they are scored."""
    steps: int = 20
    """Of the flow."""

    def __call__(self, model: RobotWan, step: int) -> dict[str, float]:
        """Means over all clips, the same in every process. Every process calls this, and runs the model equally often, because one that
        holds only a share of the weights needs the others."""
        me, many = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
        device, total, names = device_of(model), None, []
        for k in range(-(-len(self.paths) // many)):
            i = me + k * many
            path = self.paths[min(i, len(self.paths) - 1)]
            latents, extent = cache.read(path), cache.extent(path)
            told = latents.told(self.stats, model.variant).to(device)
            made = sample(model, told, sampling=Sampling(steps=self.steps), seed=i)[0].cpu()
            (rgb, points), (want, places) = (
                shown(z, self.vae, self.stats, extent) for z in (made, latents.target(self.stats))
            )
            one = self.judge(rgb, want, points, places)
            names, counts = sorted(one), float(i < len(self.paths))
            row = counts * torch.tensor([*(one[n] for n in names), 1.0], dtype=torch.float64)
            total = row if total is None else total + row
        assert total is not None  # at least one clip is held out
        if many > 1:
            total = total.to(device)
            distributed.all_reduce(total)
        return {n: float(v / total[-1]) for n, v in zip(names, total[:-1], strict=True)}
