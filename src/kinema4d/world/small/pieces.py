"""A perceived surface as convex pieces that collide.

Written for what stands on tables, because general decompositions were too slow or too rough on surfaces of a few
thousand triangles (CoACD 5 to 30 s, V-HACD fills 4 mm walls or leaves flat pieces): most parts are their convex hull;
vessels that are open above become a floor and a ring of wall pieces; a panel with something before it (a drawer or door
with its handle) becomes two hulls, so that fingers can go around the handle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int32
from scipy.spatial import ConvexHull, QhullError

CONVEX = 1.3
"""A surface whose hull has no more than this many times its volume is taken as its hull."""
ROUND = 0.045
"""A hull whose corners are equally far from its middle to this share is a ball."""
SECTORS = 12
"""Wall pieces of a vessel."""
HOLLOW = 0.45
"""A vessel's ground is lower than this share of its height."""
DIRECTIONS = 160
"""Corners of a hull are sought in so many directions."""
OFF_PANEL = 0.012
"""What stands further than this from a panel's plane is a handle, metres."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """One convex piece, or a ball where ``radius`` is given."""

    vertices: Float[np.ndarray, "v 3"]
    """Corners, or the middle of the ball."""
    faces: Int32[np.ndarray, "f 3"]
    """Triangles, normals outward."""
    volume: float
    """Cubic metres."""
    radius: float | None = None
    """Of a ball, metres."""


def volume(vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"]) -> float:
    """Of a closed surface, cubic metres."""
    a, b, c = (vertices[faces[:, i]] - vertices.mean(axis=0) for i in range(3))
    return abs(float((np.cross(a, b) * c).sum()) / 6)


def decompose(vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"], joint: str) -> list[Piece]:
    """Pieces of a part's surface, in the same frame, z up."""
    whole = hull(vertices)
    if whole is None:
        raise ValueError("a part is flat: it cannot collide")
    middle = (vertices.min(axis=0) + vertices.max(axis=0)) / 2
    far = np.linalg.norm(whole.vertices - middle, axis=1)
    radius = float(far.mean())
    full = 4 / 3 * np.pi * radius**3
    if joint == "free" and far.std() < ROUND * radius and whole.volume > 0.85 * full:
        return [Piece(vertices=middle[None], faces=np.zeros((0, 3), np.int32), volume=full, radius=radius)]
    if joint in ("slide", "hinge"):
        return panel(vertices) or [whole]
    if whole.volume <= CONVEX * max(volume(vertices, faces), 1e-9):
        return [whole]
    return vessel(vertices, faces) or [whole]


def hull(points: Float[np.ndarray, "n 3"]) -> Piece | None:
    """The convex hull, of points that lie furthest out in some direction; None where it is flat."""
    if len(points) < 4:
        return None
    n = np.arange(DIRECTIONS) + 0.5
    polar, turn = np.arccos(1 - 2 * n / DIRECTIONS), np.pi * (1 + 5**0.5) * n
    directions = np.stack([np.cos(turn) * np.sin(polar), np.sin(turn) * np.sin(polar), np.cos(polar)], axis=1)
    directions = np.concatenate([directions, np.eye(3), -np.eye(3)])
    corners = points[np.unique((directions @ points.T).argmax(axis=1))]
    if np.linalg.svd(corners - corners.mean(axis=0), compute_uv=False)[-1] < 5e-4:
        return None
    try:
        found = ConvexHull(corners)
    except QhullError:
        return None
    used, back = np.unique(found.simplices, return_inverse=True)
    corners, faces = corners[used], back.reshape(-1, 3).astype(np.int32)
    a, b, c = (corners[faces[:, i]] for i in range(3))
    flip = (np.cross(b - a, c - a) * found.equations[:, :3]).sum(axis=1) < 0
    faces[flip] = faces[flip][:, ::-1]
    return Piece(vertices=np.asarray(corners, np.float64), faces=faces, volume=float(found.volume))


def vessel(vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"]) -> list[Piece] | None:
    """Floor and walls of something that is open above; None where it is not."""
    low, high = vertices.min(axis=0), vertices.max(axis=0)
    middle, tall = (low + high) / 2, high[2] - low[2]
    inner = 0.35 * float((high - low)[:2].min()) / 2
    near = np.linalg.norm(vertices[:, :2] - middle[:2], axis=1) < inner
    if not near.any():
        return None
    ground = float(vertices[near, 2].max() - low[2])
    if ground > HOLLOW * tall:
        return None
    floor = hull(vertices[vertices[:, 2] < low[2] + max(ground, 0.003)])
    # Points along edges too: a coarse wall has few vertices between its ends.
    a, b = vertices[faces], vertices[faces[:, [1, 2, 0]]]
    cloud = np.concatenate([vertices, ((a + b) / 2).reshape(-1, 3)])
    angle = np.arctan2(cloud[:, 1] - middle[1], cloud[:, 0] - middle[0])
    sector = np.floor((angle + np.pi) / (2 * np.pi) * SECTORS).astype(int) % SECTORS
    wall = cloud[:, 2] >= low[2] + 0.5 * ground
    outside = np.linalg.norm(cloud[:, :2] - middle[:2], axis=1) > inner
    pieces = [hull(cloud[(sector == s) & wall & outside]) for s in range(SECTORS)]
    found = [p for p in (floor, *pieces) if p is not None]
    return found if len(found) > 3 else None


def panel(vertices: Float[np.ndarray, "v 3"]) -> list[Piece] | None:
    """A flat part and what stands before it; None where there is no such thing."""
    centre = np.median(vertices, axis=0)
    normal = np.linalg.svd(vertices - vertices.mean(axis=0), full_matrices=False)[2][-1]
    for _ in range(6):  # the plane of most points: handles pull a plain fit aside
        off = np.abs((vertices - centre) @ normal)
        near = vertices[off <= max(np.percentile(off, 60), 1e-4)]
        centre = near.mean(axis=0)
        normal = np.linalg.svd(near - centre, full_matrices=False)[2][-1]
    off = (vertices - centre) @ normal
    beyond = np.abs(off) > OFF_PANEL
    if beyond.mean() < 0.03 or beyond.mean() > 0.7:
        return None
    board, handle = hull(vertices[~beyond]), hull(vertices[np.abs(off) > 0.6 * OFF_PANEL])
    found = [p for p in (board, handle) if p is not None]
    return found if len(found) == 2 else None
