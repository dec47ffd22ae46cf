"""Latents of Wan's VAE: videos in and out, and how they are scaled.

A latent has a mean and deviation per channel (Wan's own); those of pointmaps are scaled once more, because they are not
distributed like pictures (appendix B.1): the release's constants, or statistics of new data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

STRIDE, GROUP = 8, 4
"""Pixels per latent, and frames per latent frame after the first."""


@dataclass(frozen=True, kw_only=True)
class PointStats:
    """Mean and deviation of the latents of pointmaps, on top of Wan's own scaling."""

    mean: float = -0.17
    """Of all channels."""
    std: float = 1.36
    """Of all channels."""

    def apply(self, latents: Tensor) -> Tensor:
        """As the transformer has them."""
        return (latents - self.mean) / self.std

    def invert(self, latents: Tensor) -> Tensor:
        """As the VAE has them."""
        return latents * self.std + self.mean


KINEMA4D = PointStats()
"""Of the release."""
PLAIN_4DNEX = PointStats(mean=-0.13, std=1.70)
"""Of 4DNeX without a robot."""


def measured(latents: Iterable[Tensor]) -> PointStats:
    """Statistics of many latents of pointmaps, one after the other."""
    count, total, square = 0, 0.0, 0.0
    for one in latents:
        x = one.double()
        count, total, square = count + x.numel(), total + float(x.sum()), square + float(x.square().sum())
    if not count:
        raise ValueError("there is no latent to measure")
    mean = total / count
    return PointStats(mean=mean, std=max(square / count - mean**2, 0.0) ** 0.5)


def latent_shape(frames: int, height: int, width: int) -> tuple[int, int, int]:
    """Times, rows and columns of the latents of one half; refused where the VAE cannot."""
    if (frames - 1) % GROUP or height % STRIDE or width % STRIDE or min(frames, height, width) < 1:
        raise ValueError(
            f"Wan's VAE takes 1 + {GROUP}k frames and sides divisible by {STRIDE}, got {frames}x{height}x{width}: "
            f"use {1 + GROUP * max((frames - 1) // GROUP, 0)} frames"
        )
    return 1 + (frames - 1) // GROUP, height // STRIDE, width // STRIDE


def check_size(frames: int, height: int, width: int, arm_patch: int) -> None:
    """Refuse what a model with robot tokens of so many latents cannot take."""
    step = STRIDE * arm_patch
    if (frames - 1) % GROUP or height % step or width % step or min(frames, height, width) < 1:
        raise ValueError(
            f"this model takes 1 + {GROUP}k frames and sides divisible by {step} (its robot tokens are "
            f"{arm_patch} latents wide), got {frames}x{height}x{width}"
        )


def device_of(module: Any) -> torch.device:
    """Where a module computes, also while its weights wait in the machine's memory."""
    hook = getattr(module, "_hf_hook", None)
    return torch.device(hook.execution_device) if hook is not None else module.device


def _scales(vae: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    shape = (1, -1, 1, 1, 1)
    mean, std = (
        torch.tensor(v, device=like.device).view(shape) for v in (vae.config.latents_mean, vae.config.latents_std)
    )
    return mean.float(), std.float()


@torch.no_grad()
def encode(vae: Any, video: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Videos [b,3,t,h,w] in -1..1 to scaled latents [b,16,...] in float32: the most likely, or with a ``generator`` a draw."""
    latent_shape(video.shape[2], *video.shape[3:])
    found = vae.encode(video.to(device_of(vae), vae.dtype)).latent_dist
    z = (found.mode() if generator is None else found.sample(generator)).float()
    mean, std = _scales(vae, z)
    return (z - mean) / std


@torch.no_grad()
def decode(vae: Any, latents: Tensor) -> Tensor:
    """Scaled latents to videos [b,3,t,h,w] in -1..1, float32."""
    mean, std = _scales(vae, latents)
    z = latents.float() * std + mean
    return vae.decode(z.to(device_of(vae), vae.dtype)).sample.float().clamp(-1, 1)


def as_video(frames: Float32[np.ndarray, "t h w 3"]) -> Tensor:
    """Frames in 0..1 as what the VAE takes."""
    return torch.from_numpy(np.ascontiguousarray(frames)).permute(3, 0, 1, 2)[None] * 2 - 1


def as_frames(video: Tensor) -> Float32[np.ndarray, "t h w 3"]:
    """The inverse of :func:`as_video`."""
    return ((video[0].permute(1, 2, 3, 0) + 1) / 2).numpy()
