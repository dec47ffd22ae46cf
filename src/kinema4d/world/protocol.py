"""What every world does: take the first image and the control signal, give back the future."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, UInt8

from kinema4d.types import Clip, Control, Rollout


@runtime_checkable
class World(Protocol):
    """A simulator of what a robot's motion does to the world around it."""

    @property
    def name(self) -> str:
        """``static``, ``small``, ``wan``."""
        ...

    def simulate(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        control: Control,
        *,
        depth: Float[np.ndarray, "_ _"] | None = None,
        seed: int = 0,
    ) -> Rollout:
        """The future of ``image`` under ``control``: one frame per frame of the control, the first being the image.

        ``depth`` is the image's depth along the optical axis in metres, as a sensor gives it: 0, negative or
        non-finite where it has none.
        """
        ...


def check_view(
    image: UInt8[np.ndarray, "h w 3"], control: Control, depth: Float[np.ndarray, "_ _"] | None
) -> Bool[np.ndarray, "h w"]:
    """Raise unless image, depth and control are of one camera; returns where depth is known."""
    camera = control.camera
    if image.shape[:2] != (camera.height, camera.width):
        raise ValueError(
            f"the image is {image.shape[0]}x{image.shape[1]} pixels (height x width) but its camera says "
            f"{camera.height}x{camera.width}: resize the image, or give the camera of this image"
        )
    if depth is None:
        return np.zeros(image.shape[:2], bool)
    if depth.shape != image.shape[:2]:
        raise ValueError(
            f"depth is {depth.shape[0]}x{depth.shape[1]} but the image {image.shape[0]}x{image.shape[1]}: "
            "register the depth to the image first"
        )
    return np.isfinite(depth) & (depth > 0)


def first_depth(clip: Clip) -> Float[np.ndarray, "h w"] | None:
    """The first frame of a clip as a depth sensor would give it, or None where it has no geometry."""
    valid = clip.pointmap.valid[0]
    return np.where(valid, clip.pointmap.depth[0], 0) if valid.any() else None
