"""What the camera sees of a scene: colour, geometry and who is where, by our own rasteriser, without GL."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float, UInt16

from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.raster import Render, Surfaces, assemble, merge, rasterize
from kinema4d.robot.control import robot_surfaces
from kinema4d.robot.model import Robot
from kinema4d.scenes.world import Scene
from kinema4d.types import ROBOT_LABEL


@lru_cache(maxsize=8)
def _robot(robot: Robot) -> Surfaces:
    return robot_surfaces([robot])


def label_names(scene: Scene) -> tuple[str, ...]:
    """Names behind the ids: every link of the robot, then every body of every thing."""
    links = [f"{ROBOT_LABEL}:{name}" for name in scene.robot.link_names]
    return (*links, *(f"{thing.name}/{body.name}" for thing in scene.things for body in thing.bodies))


def surfaces(scene: Scene) -> tuple[Surfaces, UInt16[np.ndarray, " b"]]:
    """The triangles of a scene and the label of each of its bodies: links, things, and last the room, which is 0."""
    links = len(scene.robot.link_names)
    bodies = [body for thing in scene.things for body in thing.bodies]
    parts = [(mesh, i) for i, body in enumerate(bodies) for mesh in body.meshes]
    parts += [(mesh, len(bodies)) for mesh in scene.room.meshes]
    labels = np.arange(1, links + len(bodies) + 2, dtype=np.uint16)
    labels[-1] = 0
    return merge([(_robot(scene.robot), 0), (assemble(parts), links)]), labels


def draw(scene: Scene, Ts_world_body: Float[np.ndarray, "t b 4 4"], *, threads: int | None = None) -> Render:
    """Every frame of a run; ``Ts_world_body`` are links and things as :meth:`World.transforms` gives them."""
    triangles, labels = surfaces(scene)
    frames = len(Ts_world_body)
    room = np.broadcast_to(np.eye(4), (frames, 1, 4, 4))
    Ts = T_camera_world(scene.camera, frames)[:, None] @ np.concatenate([Ts_world_body, room], axis=1)
    light = replace(scene.light, casters=len(labels) - 1, shadow_size=_shadow_size(scene))
    return rasterize(triangles, Ts, scene.camera, labels=labels, rgb=True, light=light, threads=threads)


def _shadow_size(scene: Scene) -> int:
    """Texels that are about as large as pixels: finer ones cost time and are not seen."""
    return int(np.clip(2 * scene.camera.height, 192, 1024))
