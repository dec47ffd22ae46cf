"""What the layouts of DROID share: its robot, its commands, its lenses, and how far its extrinsics are trusted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.data.ingest.guessed import guessed_camera
from kinema4d.data.ingest.parts import arms_of
from kinema4d.geometry.se3 import euler_to_matrix, transform
from kinema4d.robot.actions import Actions, drive
from kinema4d.types import Arm, Camera, Commands

FPS = 15.0
"""Rows per second."""
ROBOT = "panda_robotiq"
"""Zoo robot."""
JOINTS = tuple(f"joint_{i}" for i in range(1, 8))
"""Columns of joint positions and velocities."""
GRIPPER = ("gripper",)
"""Column of the gripper: 0 open, 1 closed."""
LENSES = {"exterior": 131.0, "wrist": 167.0}
"""fx of a 320 pixels wide image. Exterior (ZED 2): what fits the footage that was calibrated. Wrist (ZED Mini): nominal."""


def arms(
    q: Float[np.ndarray, "t 7"], gripper: Float[np.ndarray, " t"], fps: float
) -> tuple[tuple[Arm, ...], dict[str, Any]]:
    """The arm as it was measured, and facts about it."""
    return arms_of(
        ROBOT,
        lambda robot: drive(
            robot, Actions(space="joint_position", values=q, gripper=gripper, fps=fps, convention="droid")
        ),
    )


def commands(velocity: Float[np.ndarray, "t 7"], closed: Float[np.ndarray, "t 1"]) -> Commands:
    """Joint velocities and gripper as DROID's controller takes them."""
    return Commands(
        values=np.hstack([velocity, closed]),
        names=(*JOINTS, *GRIPPER),
        fps=FPS,
        space="joint_velocity",
        convention="droid",
    )


def outcome(*paths: str) -> str:
    """How a recording ended: DROID keeps successes and failures in folders of these names."""
    folders = {part for path in paths for part in path.split("/")}
    return next((name for name in ("success", "failure") if name in folders), "unknown")


def view_camera(
    height: int, width: int, *, view: str, extrinsics: Float[np.ndarray, "t 6"] | None
) -> tuple[Camera, str]:
    """The camera of a view and how it came about.

    ``extrinsics`` are xyz and extrinsic Euler angles of the camera in the robot's base, one or one per frame. A wrist
    camera with a single pose is guessed: it moves with the hand, and nothing says which moment the pose is of.
    """
    lens = LENSES["wrist" if "wrist" in view else "exterior"] / 320
    camera = guessed_camera(height, width)
    K = camera.K.copy()
    # All sizes are squashed from 16:9, so that fy follows the height alone.
    K[0, 0], K[1, 1] = lens * width, lens * height * 16 / 9
    camera = replace(camera, K=K)
    if extrinsics is None or not np.isfinite(extrinsics).all() or not extrinsics.any(axis=1).all():
        return camera, "guessed"
    if (extrinsics == extrinsics[0]).all():
        if "wrist" in view:
            return camera, "guessed"
        extrinsics = extrinsics[:1]
    Ts = transform(extrinsics[:, :3], euler_to_matrix(extrinsics[:, 3:]))
    return replace(camera, T_world_camera=Ts[0] if len(Ts) == 1 else Ts), "estimated"
