"""A scene whose truth is known: table, boxes and a moving arm, drawn by our rasteriser."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import Light, assemble, rasterize
from kinema4d.geometry.se3 import invert, look_at, place
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.meshfile import primitive
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Arm, Camera, Clip, Episode, Pointmap, Trajectory

FRAMES, HEIGHT, WIDTH, FPS = 8, 120, 180, 10.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    episode: Episode
    """What a source without depth and masks gives: rgb, arms and camera."""
    depth: np.ndarray
    """True z of every pixel, float32."""
    mask: np.ndarray
    """True visible robot pixels."""

    @property
    def pointmap(self) -> Pointmap:
        from kinema4d.geometry.camera import from_depth

        return from_depth(self.episode.clip.camera.K, self.depth, self.depth > 0)


def _parts(occluder: bool) -> list[tuple[Mesh, np.ndarray]]:
    """Meshes and where they stand."""
    parts = [
        (primitive("box", (1.6, 1.6, 0.05), (150, 120, 90)), place(0.2, 0.0, -0.025)),
        (primitive("box", (0.05, 4.0, 3.0), (90, 110, 140)), place(-1.2, 0.0, 0.5)),
        (primitive("box", (0.12, 0.1, 0.1), (200, 40, 40)), place(0.35, 0.25, 0.05)),
        (primitive("box", (0.08, 0.08, 0.16), (40, 160, 60)), place(0.1, -0.35, 0.08)),
    ]
    if occluder:
        parts.append((primitive("box", (0.05, 0.3, 0.2), (230, 220, 40)), place(0.3, -0.19, 0.1)))
    return parts


def build(occluder: bool) -> Truth:
    robot = load_robot("k4arm")
    K = np.array([[190.0, 0, (WIDTH - 1) / 2], [0, 190.0, (HEIGHT - 1) / 2], [0, 0, 1]])
    T_world_camera = look_at(np.array([1.1, -0.7, 0.75]), np.array([0.1, 0, 0.25]))
    camera = Camera(K=K, T_world_camera=T_world_camera, height=HEIGHT, width=WIDTH)
    swing = np.linspace(-1, 1, FRAMES)[:, None] * np.linspace(0.6, 0.2, robot.dof)
    q = np.clip(robot.home + swing, np.maximum(robot.lower, -3), np.minimum(robot.upper, 3))
    arm = Arm(
        robot="k4arm",
        trajectory=Trajectory(q=q, joint_names=robot.joint_names, fps=FPS),
        link_names=robot.link_names,
        converged=np.ones(FRAMES, bool),
        residual_m=np.zeros(FRAMES),
        residual_rad=np.zeros(FRAMES),
    )
    things, links = _parts(occluder), len(robot.link_names)
    surfaces = assemble(
        [(v.mesh, v.link) for v in robot.visuals] + [(mesh, links + i) for i, (mesh, _) in enumerate(things)]
    )
    still = np.broadcast_to(np.stack([T for _, T in things]), (FRAMES, len(things), 4, 4))
    Ts = invert(T_world_camera) @ np.concatenate([forward_kinematics(robot, q), still], axis=1)
    labels = np.array([1] * links + [2] * len(things), np.uint16)
    render = rasterize(surfaces, Ts, camera, labels=labels, rgb=True, light=Light(shadow_size=512))
    assert render.rgb is not None
    nothing = Pointmap(points=np.zeros_like(render.points), valid=np.zeros_like(render.valid))
    clip = Clip(camera=camera, rgb=render.rgb, pointmap=nothing, fps=FPS)
    episode = Episode(clip=clip, arms=(arm,), text="push the red box", source="oracle/0", group="0")
    return Truth(episode=episode, depth=np.where(render.valid, render.points[..., 2], 0), mask=render.ids == 1)


@pytest.fixture(scope="session")
def truth() -> Truth:
    """Nothing stands before the robot."""
    return build(occluder=False)


@pytest.fixture(scope="session")
def occluded() -> Truth:
    """A box stands between camera and robot."""
    return build(occluder=True)
