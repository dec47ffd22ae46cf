"""Plain scenes for tests: a wide table, a robot out of the way, and things where the test wants them."""

from __future__ import annotations

from functools import cache

import numpy as np

from kinema4d.geometry.mesh import Mesh, weld
from kinema4d.geometry.raster import Light
from kinema4d.geometry.se3 import look_at, place
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.shapes import box
from kinema4d.scenes.things import Thing
from kinema4d.scenes.world import Room, Scene
from kinema4d.types import Camera


@cache
def robot_named(name: str) -> Robot:
    """A robot that is loaded, and its reach measured, once for all tests."""
    return load_robot(name)


def plain_scene(*things: Thing, robot: str = "k4arm", base_x: float = -0.7) -> Scene:
    """Things on a table of 2 x 2 m in an empty room."""
    arm = robot_named(robot)
    K = np.array([[130.0, 0, 71.5], [0, 130.0, 47.5], [0, 0, 1]])
    eye = look_at(np.array([0.75, 0.2, 0.6]), np.array([0.05, 0.0, 0.05]))
    top = box((1.0, 1.0, 0.02), (150, 150, 150), centre=(0, 0, -0.02))
    return Scene(
        robot=arm,
        T_world_base=place(base_x, 0.0, 0.0),
        q_start=arm.home,
        things=things,
        room=Room(meshes=(top,), table=(-1.0, -1.0, 1.0, 1.0)),
        camera=Camera(K=K, T_world_camera=eye, height=96, width=144),
        light=Light(direction_world=(0.3, -0.4, 0.8), ambient=0.5),
    )


def volume(mesh: Mesh) -> float:
    """Signed volume within a surface: positive where it is wound outwards."""
    a, b, c = (mesh.vertices[mesh.faces[:, n]] for n in range(3))
    return float((a * np.cross(b, c)).sum() / 6)


def is_closed(mesh: Mesh) -> bool:
    """Whether every edge has one triangle on either side, wound the same way round, once equal vertices are one."""
    _, same = weld(np.round(mesh.vertices, 9))
    faces = same[mesh.faces]
    ahead = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    edges = {(int(a), int(b)) for a, b in ahead}
    return len(edges) == len(ahead) and all((b, a) in edges for a, b in edges)


def bounds(meshes: tuple[Mesh, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest corner."""
    points = np.concatenate([m.vertices for m in meshes])
    return points.min(axis=0), points.max(axis=0)
