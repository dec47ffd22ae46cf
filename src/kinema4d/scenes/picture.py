"""What the camera sees of a scene: colour, geometry and who is where, by our own rasteriser, without GL."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float, UInt16

from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.mesh import cluster
from kinema4d.geometry.raster import Render, Surfaces, assemble, merge, rasterize
from kinema4d.robot.control import robot_surfaces
from kinema4d.robot.model import Robot
from kinema4d.scenes.world import Scene
from kinema4d.types import ROBOT_LABEL

COARSE_M = 0.012
"""Cells in which the robot is simplified before it throws shadows on a small picture, whose texels are larger."""
FINE_ROWS = 200
"""Pictures with more rows get the shadows of the full surface."""


@lru_cache(maxsize=8)
def _robot(robot: Robot, coarse: bool) -> Surfaces:
    if not coarse:
        return robot_surfaces([robot])
    return assemble([(cluster(v.mesh, COARSE_M), v.link) for v in robot.visuals])


def label_names(scene: Scene) -> tuple[str, ...]:
    """Names behind the ids: every link of the robot, then every body of every thing."""
    links = [f"{ROBOT_LABEL}:{name}" for name in scene.robot.link_names]
    return (*links, *(f"{thing.name}/{body.name}" for thing in scene.things for body in thing.bodies))


def surfaces(scene: Scene) -> tuple[Surfaces, Surfaces, UInt16[np.ndarray, " b"]]:
    """The triangles of a scene; those that throw shadows, without the room; and the label of each of its bodies: links,
    things, and last the room, which is 0."""
    links = len(scene.robot.link_names)
    bodies = [body for thing in scene.things for body in thing.bodies]
    things = assemble([(mesh, i) for i, body in enumerate(bodies) for mesh in body.meshes])
    room = assemble([(mesh, 0) for mesh in scene.room.meshes])
    labels = np.arange(1, links + len(bodies) + 2, dtype=np.uint16)
    labels[-1] = 0
    coarse = scene.camera.height < FINE_ROWS
    everything = merge([(_robot(scene.robot, False), 0), (things, links), (room, links + len(bodies))])
    return everything, merge([(_robot(scene.robot, coarse), 0), (things, links)]), labels


def draw(scene: Scene, Ts_world_body: Float[np.ndarray, "t b 4 4"], *, threads: int | None = None) -> Render:
    """Every frame of a run; ``Ts_world_body`` are links and things as :meth:`World.transforms` gives them."""
    triangles, casters, labels = surfaces(scene)
    frames = len(Ts_world_body)
    room = np.broadcast_to(np.eye(4), (frames, 1, 4, 4))
    Ts = T_camera_world(scene.camera, frames)[:, None] @ np.concatenate([Ts_world_body, room], axis=1)
    # Texels about as large as pixels: finer ones cost time and are not seen.
    light = replace(scene.light, shadow_size=int(np.clip(2 * scene.camera.height, 192, 1024)))
    return rasterize(
        triangles, Ts, scene.camera, labels=labels, rgb=True, light=light, casters=casters, threads=threads
    )
