"""Train the motion model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from kinema4d.train.motion_batches import Sample, batch
from kinema4d.train.motion_loss import errors, loss
from kinema4d.world.small.motion import MotionModel


@dataclass(eq=False)
class MotionTask:
    """Batches of simulated motions, harder ones more often."""

    model: MotionModel
    """What is trained."""
    samples: Sequence[Sample]
    """To learn from."""
    held_out: dict[str, Sequence[Sample]]
    """To validate on, by name."""
    size: int = 32
    """Scenes per batch."""
    seed: int = 0
    """Of the batches."""
    flow: float = 0.4
    """Weight of the flow's loss."""

    def __post_init__(self) -> None:
        weight = np.array([difficulty(s) for s in self.samples])
        self.chance = weight / weight.sum()

    def loss(self, step: int) -> Tensor:
        """Of one batch."""
        rng = np.random.default_rng([self.seed, step])
        chosen = rng.choice(len(self.samples), self.size, p=self.chance)
        scene, target = batch([self.samples[i] for i in chosen], rng)
        return loss(self.model, scene, target, flow=self.flow)

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Errors of moved parts, false motion, falls."""
        assert isinstance(model, MotionModel)
        out: dict[str, float] = {}
        for name, samples in self.held_out.items():
            parts: dict[str, list[Tensor]] = {}
            for i in range(0, len(samples), 64):
                scene, target = batch(samples[i : i + 64], None)
                for key, value in errors(scene, model.mean(scene)[-1], target).items():
                    parts.setdefault(key, []).append(value)
            e = {k: torch.cat(v) for k, v in parts.items()}
            moved = e["static"] > 0.01
            still = e["moved"] < 0.003
            fell = moved & (e["tilt_true"] > 45)
            out |= {
                f"{name}/error_median_cm": float(e["error"][moved].median()) * 100,
                f"{name}/error_mean_cm": float(e["error"][moved].mean()) * 100,
                f"{name}/static_mean_cm": float(e["static"][moved].mean()) * 100,
                f"{name}/false_mm": float(e["said"][still].mean()) * 1000,
                f"{name}/false_share": float((e["said"][still] > 0.005).float().mean()),
                f"{name}/missed_share": float((e["said"][moved] < 0.005).float().mean()),
                f"{name}/fell_tilt_deg": float(e["tilt_error"][fell].median()) if fell.any() else 0.0,
            }
        return out


def difficulty(sample: Sample) -> float:
    """Parts that move count more, and those that tip over most."""
    n = int(sample.present.sum())
    shift = np.abs(sample.Ts[:n, :, :3, 3] - sample.Ts[:n, :1, :3, 3]).max(initial=0.0)
    tilt = sample.Ts[:n, -1, 2, 2].min(initial=1.0)
    return 1.0 if shift < 0.01 else 3.0 if tilt < 0.7 else 2.0
