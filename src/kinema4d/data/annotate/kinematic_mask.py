"""The robot's pixels from its joints, its URDF and the camera: exact, and without a network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from jaxtyping import Bool
from scipy import ndimage

from kinema4d.geometry.raster import Surfaces
from kinema4d.robot.control import project, robot_surfaces
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Control, Episode


@dataclass(frozen=True, kw_only=True)
class KinematicMask:
    """Silhouette of the projected robot, less what the scene's own depth shows to be hidden.

    A robot pixel is hidden where a valid scene point lies nearer than the robot's surface by more than
    ``tolerance_m + tolerance_share * depth``. Specks thinner than three pixels are taken for noise of the depth.
    Without metric depth nothing is hidden.
    """

    tolerance_m: float = 0.02
    """Metres: covers calibration errors and thin contact, such as an object between fingers."""
    tolerance_share: float = 0.02
    """Share of the depth: noise of depth cameras and networks grows with distance."""
    after_depth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.tolerance_m >= 0 and self.tolerance_share >= 0):
            raise ValueError(f"tolerances must not be negative, got {self.tolerance_m} m and {self.tolerance_share}")

    def __call__(self, episode: Episode, /) -> Bool[np.ndarray, "t h w"]:
        """Visible robot pixels."""
        robot = project_robot(episode)
        scene = episode.clip.pointmap
        if not episode.metric or not scene.valid.any():
            return robot.mask.copy()
        depth = robot.pointmap.depth
        tolerance = self.tolerance_m + self.tolerance_share * depth
        hidden = robot.mask & scene.valid & (depth - scene.depth > tolerance)
        return robot.mask & ~np.asarray(ndimage.binary_opening(hidden, np.ones((1, 3, 3), bool)), bool)


def project_robot(episode: Episode) -> Control:
    """Where the episode's robots are in every pixel, scene or no scene; ``ValueError`` where that is not known."""
    if not episode.arms:
        missing = episode.facts.get("robot_missing", "")
        raise ValueError(
            "the robot's geometry is not known: the episode has no joint states"
            + (f" ({missing})" if missing else "; use a segmenter (--mask command), and --align none")
        )
    if episode.camera_from == "guessed":
        raise ValueError(
            "the camera is only guessed, so the robot cannot be projected; calibrate it first (kinema4d calibrate), or "
            "use a segmenter (--mask command) and --align none"
        )
    robots, surfaces = _models(tuple(arm.robot for arm in episode.arms))
    for robot, arm in zip(robots, episode.arms, strict=True):
        if arm.trajectory.joint_names != robot.joint_names:
            raise ValueError(
                f"the episode moves joints {', '.join(arm.trajectory.joint_names)} but {arm.robot} has "
                f"{', '.join(robot.joint_names)}; ingest the episode again with this robot"
            )
        if len(arm.trajectory.q) != len(episode):
            raise ValueError(f"{arm.robot} has {len(arm.trajectory.q)} joint states, the clip {len(episode)} frames")
    return project(robots, episode.arms, episode.clip.camera, rgb=False, surfaces=surfaces)


@lru_cache(maxsize=4)
def _models(names: tuple[str, ...]) -> tuple[tuple[Robot, ...], Surfaces]:
    """Robots and their triangles: the same few serve thousands of episodes."""
    robots = tuple(load_robot(name) for name in names)
    return robots, robot_surfaces(robots)
