"""The honest baseline: everything but the robot stays as the first frame shows it.

What any world has to beat. The robot is exactly where its kinematics says; nothing is ever moved by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from kinema4d.types import Control, Rollout
from kinema4d.world.compose import background, clip_from, lit_like, over, robot_pixels
from kinema4d.world.protocol import check_view


@dataclass(frozen=True)
class StaticWorld:
    """A world in which nothing answers."""

    name: str = "static"
    """Its name in tables."""

    def simulate(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        control: Control,
        *,
        depth: Float[np.ndarray, "_ _"] | None = None,
        seed: int = 0,
    ) -> Rollout:
        """The robot over the first frame. A camera that moves is refused: the frame would have to be seen from
        elsewhere. ``seed`` changes nothing."""
        has_depth = check_view(image, control, depth)
        if control.camera.moving:
            raise ValueError(
                "the static world cannot look at its first frame from a moving camera; give a camera with one pose"
            )
        still = background(image, control, depth, has_depth)
        rgb, pointmap = over(still, control, lit_like(image, control, robot_pixels(control, depth, has_depth)))
        return Rollout(
            clip=clip_from(image, depth, has_depth, control, rgb, pointmap),
            provenance={"world": self.name, "seed": seed},
        )
