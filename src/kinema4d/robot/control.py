"""Robot + actions + camera = the 4D control signal (section 3.1 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.raster import NEAR, Light, Render, Surfaces, assemble, rasterize
from kinema4d.robot.actions import Actions, drive
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.robot.solids import solids_of
from kinema4d.types import Arm, Camera, Control, Pointmap


def control(
    robot: Robot | Sequence[Robot],
    actions: Actions | Sequence[Actions],
    camera: Camera,
    *,
    rgb: bool = True,
    light: Light | None = None,
    near: float = NEAR,
) -> Control:
    """Drive one robot, or several in one scene, and project it into the camera."""
    robots = [robot] if isinstance(robot, Robot) else list(robot)
    sequences = [actions] if isinstance(actions, Actions) else list(actions)
    if len(robots) != len(sequences):
        raise ValueError(f"{len(robots)} robots need as many action sequences, got {len(sequences)}")
    return project(
        robots, [drive(r, a) for r, a in zip(robots, sequences, strict=True)], camera, rgb=rgb, light=light, near=near
    )


def project(
    robots: Sequence[Robot],
    arms: Sequence[Arm],
    camera: Camera,
    *,
    rgb: bool = True,
    light: Light | None = None,
    near: float = NEAR,
    surfaces: Surfaces | None = None,
    out: Render | None = None,
) -> Control:
    """Equation 1 for robots that already move. ``surfaces`` and ``out`` may be reused between cameras."""
    if not arms:
        raise ValueError("there is no robot to project")
    frames, fps = len(arms[0].trajectory.q), arms[0].trajectory.fps
    for i, arm in enumerate(arms):
        if len(arm.trajectory.q) != frames or arm.trajectory.fps != fps:
            raise ValueError(
                f"robots share one clock: robot 0 has {frames} frames at {fps:g} fps, robot {i} has "
                f"{len(arm.trajectory.q)} at {arm.trajectory.fps:g}; resample one of them"
            )
    Ts_world_link = [
        a.trajectory.T_world_base @ forward_kinematics(r, a.trajectory.q) for r, a in zip(robots, arms, strict=True)
    ]
    Ts_camera_link = T_camera_world(camera, frames)[:, None] @ np.concatenate(Ts_world_link, axis=1)
    render = rasterize(
        surfaces or robot_surfaces(robots), Ts_camera_link, camera, rgb=rgb, light=light, near=near, out=out
    )
    if not render.valid.any():
        raise ValueError(_sees_nothing(Ts_camera_link, camera))
    many = len(robots) > 1
    return Control(
        camera=camera,
        pointmap=Pointmap(points=render.points, valid=render.valid),
        link_ids=render.ids,
        link_names=tuple(f"{i}/{n}" if many else n for i, r in enumerate(robots) for n in r.link_names),
        arms=tuple(arms),
        fps=fps,
        rgb=render.rgb,
        solids=solids_of(robots, arms),
    )


def robot_surfaces(robots: Sequence[Robot]) -> Surfaces:
    """The triangles of robots whose links are numbered one after the other."""
    offsets = np.cumsum([0] + [len(r.link_names) for r in robots])
    return assemble([(v.mesh, v.link + int(o)) for r, o in zip(robots, offsets[:-1], strict=True) for v in r.visuals])


def _sees_nothing(Ts_camera_link: np.ndarray, camera: Camera) -> str:
    x, y, z = np.median(Ts_camera_link[:, :, :3, 3].reshape(-1, 3), axis=0)
    where = "behind the camera" if z <= 0 else "in front of the camera but outside its image"
    return (
        f"the camera sees no part of the robot in any frame: the robot is {where}, around x={x:.2f} y={y:.2f} z={z:.2f} m "
        "in the camera frame (OpenCV axes: x right, y down, z forward). Check T_world_camera (not its inverse), the "
        f"{camera.height}x{camera.width} size and K"
    )
