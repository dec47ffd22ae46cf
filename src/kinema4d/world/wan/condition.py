"""What the full-scale model is told, as latents: the first image, the robot, and masks (appendix B.1, and the release)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, UInt8
from torch import Tensor

from kinema4d.types import Control
from kinema4d.world.condition import Normalisation, latent_mask, normalise, soft_mask
from kinema4d.world.wan.latents import PointStats, as_video, encode
from kinema4d.world.wan.model import MASK, Variant

POINTS_FIRST = 0.5
"""What the mask says of the first frame's pointmap: it is a slope that nobody measured."""


@dataclass(frozen=True, eq=False)
class Told:
    """Of one clip."""

    first: Tensor
    """[1,16,t,h,2w] the first image beside a sloping pointmap, then nothing, encoded."""
    mask: Tensor
    """[1,4,t,h,2w] what of it is given."""
    arm: Tensor
    """[1,20,t,h,...] mask and latents of the robot, in both halves or only of its points."""
    image: Tensor
    """[1,n,c] CLIP's tokens of the first image."""
    scale: Normalisation | None = None
    """How the robot's points were brought into 0..1."""

    def to(self, device: Any) -> Told:
        """On another device."""
        moved = {n: getattr(self, n).to(device) for n in ("first", "mask", "arm", "image")}
        return replace(self, **moved)

    def beside(self, noisy: Tensor) -> Tensor:
        """The whole input [b,36,t,h,2w] of noisy latents."""
        return torch.cat([noisy, self.mask.to(noisy), self.first.to(noisy)], 1)


def slope(height: int, width: int) -> Float32[np.ndarray, "h w 3"]:
    """The pointmap that stands beside the first image: x to the right, y downwards, z upwards, 0..1."""
    x, y = np.linspace(0, 1, width, dtype=np.float32), np.linspace(0, 1, height, dtype=np.float32)
    x, y = np.broadcast_to(x, (height, width)), np.broadcast_to(y[:, None], (height, width))
    return np.stack([x, y, 1 - y], axis=-1)


def first_latents(vae: Any, image: UInt8[np.ndarray, "h w 3"], frames: int) -> Tensor:
    """The condition video: image and slope at the first frame, grey after it."""
    h, w = image.shape[:2]
    video = torch.zeros(1, 3, frames, h, 2 * w)
    pair = np.concatenate([image / np.float32(255), slope(h, w)], axis=1)
    video[:, :, :1] = as_video(pair[None])
    return encode(vae, video)


def given_mask(times: int, height: int, width: int) -> Tensor:
    """[1,4,t,h,2w]: only the first frame is given, its pointmap half."""
    mask = torch.zeros(1, MASK, times, height, 2 * width)
    mask[:, :, 0, :, :width], mask[:, :, 0, :, width:] = 1.0, POINTS_FIRST
    return mask


def robot_mask(
    there: Bool[np.ndarray, "t h w"], *, soft: int | None = None, ratio: float = 0.1
) -> Float32[np.ndarray, "l y x"]:
    """At the rate of latents; ``soft`` is the seed of a soft one, as training draws it anew for every step."""
    hard = latent_mask(there)
    return hard.astype(np.float32) if soft is None else soft_mask(hard, seed=soft, ratio=ratio)


def arm_of(mask: Tensor, colour: Tensor | None, points: Tensor, variant: Variant) -> Tensor:
    """Mask [b,t,h,w] and latents [b,16,t,h,w] of the robot as what a variant is told."""
    four = mask[:, None].repeat(1, MASK, 1, 1, 1).to(points)
    if variant == "pmcond":
        return torch.cat([four, points], 1)
    if colour is None:
        raise ValueError("this variant is told of the robot by its colour too: make the control signal with rgb=True")
    return torch.cat([four.repeat(1, 1, 1, 1, 2), torch.cat([colour.to(points), points], -1)], 1)


def robot_latents(
    vae: Any, control: Control, stats: PointStats, variant: Variant
) -> tuple[Tensor | None, Tensor, Normalisation]:
    """Colour and points of the robot, encoded, and how the points were scaled over the whole sequence."""
    values, scale = normalise(control.pointmap)
    points = stats.apply(encode(vae, as_video(values)))
    if variant == "pmcond":
        return None, points, scale
    if control.rgb is None:
        raise ValueError("this variant is told of the robot by its colour too: make the control signal with rgb=True")
    alone = np.where(control.mask[..., None], control.rgb, 0) / np.float32(255)
    return encode(vae, as_video(alone.astype(np.float32))), points, scale
