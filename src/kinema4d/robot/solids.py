"""A robot as solids that push: the convex hull of every link, what is seen of it, and where it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.types import Arm, Solid

HULL_DIRECTIONS = 300
"""How many directions to look for the corners of a link's hull in."""


def solids_of(robots: Sequence[Robot], arms: Sequence[Arm]) -> tuple[Solid, ...]:
    """Every link of every robot that has a surface, as ``arms`` move it."""
    out = []
    for i, (robot, arm) in enumerate(zip(robots, arms, strict=True)):
        Ts = arm.trajectory.T_world_base @ forward_kinematics(robot, arm.trajectory.q)
        out += _solids(robot, Ts, f"{i}/" if len(robots) > 1 else "")
    return tuple(out)


def _solids(robot: Robot, Ts_world_link: Float[np.ndarray, "t l 4 4"], prefix: str) -> list[Solid]:
    roles = link_roles(robot)
    return [
        Solid(
            name=prefix + name,
            role=roles[i],
            vertices=hull[0],
            faces=hull[1],
            Ts_world_link=Ts_world_link[:, i],
            meshes=tuple(v.mesh for v in robot.visuals if v.link == i),
        )
        for i, (name, hull) in enumerate(zip(robot.link_names, link_hulls(robot, skip_flat=True), strict=True))
        if hull is not None
    ]


def link_roles(robot: Robot) -> tuple[str, ...]:
    """``finger``, ``palm`` or ``arm`` for every link."""
    joints = robot.gripper.joints if robot.gripper else ()
    columns = {robot.joint_names.index(name) for name in joints}
    fingers: set[int] = set()
    for i in range(len(robot.link_names)):  # parents stand before their children
        if int(robot.column[i]) in columns or int(robot.parent[i]) in fingers:
            fingers.add(i)
    palms = {int(robot.parent[i]) for i in fingers} - fingers
    return tuple("finger" if i in fingers else "palm" if i in palms else "arm" for i in range(len(robot.link_names)))


@lru_cache(maxsize=16)
def link_hulls(robot: Robot, *, skip_flat: bool = False) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """The convex hull of every link, of points that lie furthest out in some direction: corners stay exact, and a
    curved surface shrinks by less than a millimetre. None for a link without a surface, or with a flat one where
    ``skip_flat`` allows it."""
    from scipy.spatial import ConvexHull, QhullError

    n = np.arange(HULL_DIRECTIONS) + 0.5
    polar, turn = np.arccos(1 - 2 * n / HULL_DIRECTIONS), np.pi * (1 + 5**0.5) * n
    directions = np.stack([np.cos(turn) * np.sin(polar), np.sin(turn) * np.sin(polar), np.cos(polar)], axis=1)
    hulls: list[tuple[np.ndarray, np.ndarray] | None] = []
    for i in range(len(robot.link_names)):
        points = [v.mesh.vertices for v in robot.visuals if v.link == i]
        if not points:
            hulls.append(None)
            continue
        cloud = np.concatenate(points)
        cloud = cloud[np.unique((directions @ cloud.T).argmax(axis=1))]
        try:
            cloud = cloud[ConvexHull(cloud).vertices]
            hull = ConvexHull(cloud)
        except QhullError:
            if skip_flat:
                hulls.append(None)
                continue
            raise ValueError(f"the surface of link {robot.link_names[i]!r} is flat: it cannot collide") from None
        hulls.append((cloud.astype(np.float32), _outward(hull, cloud)))
    return hulls


def _outward(hull: Any, points: np.ndarray) -> np.ndarray:
    """Triangles of a hull, wound so that their normals point out."""
    faces = hull.simplices.astype(np.int32)
    a, b, c = (points[faces[:, n]] for n in range(3))
    flip = (np.cross(b - a, c - a) * hull.equations[:, :3]).sum(axis=1) < 0
    faces[flip] = faces[flip][:, ::-1]
    return faces
