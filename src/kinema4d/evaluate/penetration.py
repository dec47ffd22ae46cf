"""How deep things stick in the robot, and how far the hand is from them, from poses alone.

The robot is the convex hull of each link, as it is for the physics. A thing is points on its surface, and, where its
mesh falls into convex pieces (a block, the boards of a drawer), those too, so that a fingertip inside a large face is
noticed. Contacts of the simulator are soft and its hulls simpler than what is seen: a firm grasp overlaps by some
millimetres in the truth as well, which is why the truth's own number stands beside every other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from kinema4d.evaluate.penetration_kernels import hull_distance
from kinema4d.evaluate.symmetry import surface_points
from kinema4d.geometry.mesh import weld
from kinema4d.geometry.se3 import apply, invert
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.robot.solids import link_hulls
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.hand import hand_links
from kinema4d.types import Arm

SAMPLES = 1200
"""Points on a thing's surface: about 3 mm apart on a block."""
LINK_SAMPLES = 400
"""Points on a link's hull."""
CONVEX = 0.97
"""A piece of a mesh that fills this share of its hull is convex."""
FARTHEST_M = 0.2
"""Larger gaps are not told apart."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Solid:
    """A body that things can stick in."""

    points: Float[np.ndarray, "n 3"]
    """On its surface, in its frame, metres."""
    pieces: tuple[Float[np.ndarray, "k 4"], ...]
    """Convex pieces as planes ``n x + d <= 0``; none where it has hollows."""
    centre: Float[np.ndarray, "3"]
    """Of a ball around it."""
    radius: float
    """Of that ball."""


@lru_cache(maxsize=32)
def robot_of(source: str) -> Robot:
    """The robot of an arm, loaded once."""
    return load_robot(source)


def link_poses(arm: Arm) -> Float[np.ndarray, "t link 4 4"]:
    """World poses of all links of an arm."""
    return arm.trajectory.T_world_base @ forward_kinematics(robot_of(arm.robot), arm.trajectory.q)


@lru_cache(maxsize=32)
def robot_solids(source: str) -> tuple[Solid | None, ...]:
    """Every link of a robot; None where a link has no surface."""
    from scipy.spatial import ConvexHull

    made: list[Solid | None] = []
    for hull in link_hulls(robot_of(source)):
        if hull is None:
            made.append(None)
            continue
        cloud, faces = hull[0].astype(np.float64), hull[1]
        points = np.concatenate([cloud, surface_points(cloud, faces, LINK_SAMPLES)])
        made.append(_solid(points, (_planes(ConvexHull(cloud)),)))
    return tuple(made)


def thing_solid(vertices: Float[np.ndarray, "v 3"], faces: np.ndarray, *, whole: bool = True) -> Solid:
    """A thing from its mesh; one that is not ``whole`` is only the points of what was seen of it."""
    vertices, faces = np.ascontiguousarray(vertices, np.float64), np.ascontiguousarray(faces, np.int32)
    if not whole:
        return _solid(np.concatenate([vertices, surface_points(vertices, faces, SAMPLES)]), ())
    return _thing(vertices.tobytes(), faces.tobytes())


@lru_cache(maxsize=256)
def _thing(vertex_bytes: bytes, face_bytes: bytes) -> Solid:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import ConvexHull, QhullError

    vertices = np.frombuffer(vertex_bytes).reshape(-1, 3)
    faces = np.frombuffer(face_bytes, np.int32).reshape(-1, 3)
    points = np.concatenate([vertices, surface_points(vertices, faces, SAMPLES)])
    # A part such as a board is listed as one run of vertices; its sides meet where corners coincide.
    first, same = weld(np.round(vertices, 7))
    joined = same[faces]
    links = coo_matrix((np.ones(2 * len(faces)), (joined[:, :2].T.ravel(), joined[:, 1:].T.ravel())), [len(first)] * 2)
    part = connected_components(links, directed=False)[1][joined[:, 0]]
    pieces = []
    for number in range(int(part.max(initial=-1)) + 1):
        own = faces[part == number]
        if not len(own):  # vertices that no triangle uses
            continue
        a, b, c = (vertices[own[:, k]] for k in range(3))
        volume = abs(float((a * np.cross(b, c)).sum())) / 6
        try:
            hull = ConvexHull(vertices[np.unique(own)])
        except QhullError:  # flat: nothing can be inside
            continue
        if CONVEX * hull.volume < volume < hull.volume / CONVEX:
            pieces.append(_planes(hull))
    return _solid(points, tuple(pieces))


def _planes(hull: object) -> Float[np.ndarray, "k 4"]:
    return np.ascontiguousarray(np.unique(np.round(hull.equations, 9), axis=0))  # pyright: ignore[reportAttributeAccessIssue]


def _solid(points: np.ndarray, pieces: tuple[np.ndarray, ...]) -> Solid:
    centre = (points.min(axis=0) + points.max(axis=0)) / 2
    return Solid(
        points=np.ascontiguousarray(points),
        pieces=pieces,
        centre=centre,
        radius=float(np.linalg.norm(points - centre, axis=1).max()),
    )


def distance(a: Solid, b: Solid, T_a_b: Float[np.ndarray, "4 4"], most: float) -> float:
    """Distance between two bodies, at most ``most``; negative where points of one are inside the other. Beside edges a
    little less than the true one."""
    between = float(np.linalg.norm(T_a_b[:3, :3] @ b.centre + T_a_b[:3, 3] - a.centre)) - a.radius - b.radius
    if between >= most:
        return most
    there = apply(T_a_b, b.points)
    for piece in a.pieces:
        most = hull_distance(there, piece, most)
    if b.pieces:
        here = apply(invert(T_a_b), a.points)
        for piece in b.pieces:
            most = hull_distance(here, piece, most)
    return most


def depths(
    arms: Sequence[Arm], frames: np.ndarray, things: Mapping[str, tuple[Solid, Float[np.ndarray, "n 4 4"]]]
) -> Float[np.ndarray, " n"]:
    """Deepest overlap of any thing with any link at each frame, metres; 0 where nothing overlaps."""
    deepest = np.zeros(len(frames))
    for arm in arms:
        Ts, solids = link_poses(arm)[frames], robot_solids(arm.robot)
        for k in range(len(frames)):
            for i, link in enumerate(solids):
                if link is None:
                    continue
                T_link_world = invert(Ts[k, i])
                for solid, poses in things.values():
                    if np.isfinite(poses[k]).all():
                        deepest[k] = max(
                            deepest[k], -distance(link, solid, T_link_world @ poses[k], -float(deepest[k]))
                        )
    return deepest


def gaps(
    arms: Sequence[Arm], frames: np.ndarray, parts: Sequence[tuple[Solid, Float[np.ndarray, "n 4 4"]]]
) -> Float[np.ndarray, " n"]:
    """Distance between any hand and a thing of some parts at each frame, metres, at most ``FARTHEST_M``."""
    found = np.full(len(frames), FARTHEST_M)
    for arm in arms:
        robot, Ts, solids = robot_of(arm.robot), link_poses(arm)[frames], robot_solids(arm.robot)
        # An arm without a known gripper touches with any of its links.
        names = hand_links(robot) if robot.gripper is not None else robot.link_names
        for i in (robot.link_index(name) for name in names):
            link = solids[i]
            if link is None:
                continue
            for k in range(len(frames)):
                for solid, poses in parts:
                    found[k] = min(found[k], distance(link, solid, invert(Ts[k, i]) @ poses[k], float(found[k])))
    return found
