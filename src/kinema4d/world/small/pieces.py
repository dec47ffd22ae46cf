"""A perceived surface as convex pieces that collide.

Written for what stands on tables, because general decompositions were too slow or too rough on surfaces of a few
thousand triangles (CoACD 5 to 30 s, V-HACD fills 4 mm walls or leaves flat pieces): most parts are their convex hull;
vessels that are open above become a floor and a ring of wall pieces; what has a joint is cut where its cross-section
changes, so that fingers can go around the handle of a drawer or door.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int32
from scipy.spatial import ConvexHull, QhullError

from kinema4d.geometry.se3 import place, rotvec_to_matrix
from kinema4d.world.small.shape import Shape, mesh_of

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
BOARD = 0.003
"""Half the thickness of boards that are guessed, metres."""
SLAB, ALIKE = 0.006, 0.012
"""Thickness of the slabs that jointed parts are cut into, and how far their borders may differ to be one, metres."""


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
    plain: tuple[str, tuple[float, ...]] | None = None
    """Where it is a ``box`` or ``cylinder``: which, and its half sides, or radius and half height, metres."""
    T: Float[np.ndarray, "4 4"] | None = None
    """And where that is."""


def volume(vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"]) -> float:
    """Of a closed surface, cubic metres."""
    a, b, c = (vertices[faces[:, i]] - vertices.mean(axis=0) for i in range(3))
    return abs(float((np.cross(a, b) * c).sum()) / 6)


def decompose(
    vertices: Float[np.ndarray, "v 3"],
    faces: Int32[np.ndarray, "f 3"],
    joint: str,
    axis: Float[np.ndarray, "3"] | None = None,
) -> list[Piece]:
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
        across = axis if joint == "slide" and axis is not None else board_normal(vertices)
        return slabs(vertices, faces, across) or [whole]
    if whole.volume <= CONVEX * max(volume(vertices, faces), 1e-9):
        return [whole]
    return vessel(vertices, faces) or [whole]


def shape_pieces(shape: Shape) -> list[Piece]:
    """Pieces of an everyday solid, as plain as they can be: engines find more than one contact between boxes, and
    cylinders roll."""
    x, y = shape.centre
    if shape.ball is not None:
        middle = np.array([[x, y, (shape.low + shape.high) / 2]])
        full = 4 / 3 * np.pi * shape.ball**3
        return [Piece(vertices=middle, faces=np.zeros((0, 3), np.int32), volume=full, radius=shape.ball)]
    if shape.half is not None:
        size = (*shape.half, (shape.high - shape.low) / 2)
        return [plain("box", size, place(x, y, (shape.low + shape.high) / 2, yaw=shape.yaw))]
    assert shape.profile is not None
    if shape.wall is None:
        return [_frustum(x, y, a, b) for a, b in pairwise(shape.profile)]
    base = float(np.interp(shape.floor, shape.profile[:, 1], shape.profile[:, 0]))
    thick = max(shape.floor - shape.low, 0.001) / 2
    return [
        plain("cylinder", (min(base, float(shape.profile[0, 0])), thick), place(x, y, shape.low + thick)),
        *(p for a, b in pairwise(shape.profile) for p in _ring(x, y, a, b, shape.wall)),
    ]


def plain(kind: str, size: tuple[float, ...], T: Float[np.ndarray, "4 4"]) -> Piece:
    """A ``box`` of half sides or an upright ``cylinder`` of radius and half height at ``T``."""
    full = 8 * size[0] * size[1] * size[2] if kind == "box" else 2 * np.pi * size[0] ** 2 * size[1]
    vertices, faces = _drawn(kind, size)
    vertices = vertices @ T[:3, :3].T + T[:3, 3]
    return Piece(vertices=vertices, faces=faces, volume=float(full), plain=(kind, size), T=T)


def _drawn(kind: str, size: tuple[float, ...]) -> tuple[Float[np.ndarray, "v 3"], Int32[np.ndarray, "f 3"]]:
    """The surface of a plain piece about its own middle."""
    zero = np.zeros(2)
    if kind == "box":
        return mesh_of(Shape(centre=zero, low=-size[2], high=size[2], half=np.array(size[:2])))
    ring = np.array([[size[0], -size[1]], [size[0], size[1]]])
    return mesh_of(Shape(centre=zero, low=-size[1], high=size[1], profile=ring))


def shifted(piece: Piece, by: Float[np.ndarray, "3"]) -> Piece:
    """The piece elsewhere."""
    T = None
    if piece.T is not None:
        T = piece.T.copy()
        T[:3, 3] += by
    return replace(piece, vertices=piece.vertices + by, T=T)


def _frustum(x: float, y: float, a: Float[np.ndarray, "2"], b: Float[np.ndarray, "2"]) -> Piece:
    """Between two rings (radius, height) about a vertical axis."""
    high = (b[1] - a[1]) / 2
    if abs(a[0] - b[0]) < 0.0012 or high < 0.002:
        radius = float(a[0] + b[0]) / 2
        return plain("cylinder", (radius, max(float(high), 5e-4)), place(x, y, float(a[1] + b[1]) / 2))
    angle = 2 * np.pi * np.arange(24) / 24
    rings = [np.column_stack([x + r * np.cos(angle), y + r * np.sin(angle), np.full(24, z)]) for r, z in (a, b)]
    found = hull(np.concatenate(rings))
    assert found is not None
    return found


def _ring(x: float, y: float, a: Float[np.ndarray, "2"], b: Float[np.ndarray, "2"], wall: float) -> list[Piece]:
    """A wall of boxes between two rings of its outer side."""
    lean, length = float(np.arctan2(b[0] - a[0], b[1] - a[1])), float(np.hypot(b[0] - a[0], b[1] - a[1]))
    thick = wall * np.cos(lean)
    out, up = (a + b) / 2 - thick / 2 * np.array([np.cos(lean), -np.sin(lean)])
    size = (thick / 2, max(float(a[0]), float(b[0])) * np.tan(np.pi / SECTORS) * 0.98, length / 2)
    pieces = []
    for n in range(SECTORS):
        turn = 2 * np.pi * n / SECTORS
        T = place(x, y, 0.0, yaw=turn)
        tilt = np.eye(4)
        tilt[:3, :3] = rotvec_to_matrix(np.array([0.0, lean, 0.0]))
        tilt[:3, 3] = (out, 0.0, up)
        pieces.append(plain("box", size, T @ tilt))
    return pieces


def joined(pieces: Sequence[Piece]) -> tuple[Float[np.ndarray, "v 3"], Int32[np.ndarray, "f 3"]]:
    """One surface of all pieces."""
    counts = np.cumsum([0, *(len(p.vertices) for p in pieces)])
    faces = [p.faces + n for p, n in zip(pieces, counts, strict=False)]
    return np.concatenate([p.vertices for p in pieces]), np.concatenate(faces).astype(np.int32)


def tray(
    pieces: Sequence[Piece],
    axis: Float[np.ndarray, "3"],
    chest: Float[np.ndarray, "n 3"],
    shut: float,
) -> list[Piece]:
    """Floor, sides and back of a drawer behind its front, as deep as its chest: nobody sees them while it is shut, but
    all drawers have them. ``pieces`` are what is seen of the drawer, ``axis`` is where it opens to, ``shut`` how far it is
    from being shut. Empty where there is no upright front before the chest."""
    if abs(axis[2]) > 0.3:
        return []
    side, up = np.cross([0.0, 0, 1], axis), np.array([0.0, 0, 1])
    side /= np.linalg.norm(side)
    frame = np.stack([axis, side, up])
    spans = [np.stack([(p.vertices @ frame.T).min(axis=0), (p.vertices @ frame.T).max(axis=0)]) for p in pieces]
    front = max(spans, key=lambda b: float(np.prod((b[1] - b[0])[1:])))
    back = float(np.percentile(chest @ axis, 2)) + shut + 2 * BOARD
    (low, high), inner = front[:, 1:], float(front[0, 0])
    if np.prod(high - low) < 1e-3 or inner - back < 0.02:
        return []
    low, high = low + np.array([0.004, 0.0]), high - np.array([0.004, 0.0])
    rim = low[1] + 0.65 * (high[1] - low[1])
    boxes = [
        ((back, low[0], low[1]), (inner, high[0], low[1] + 2 * BOARD)),
        ((back, low[0], low[1]), (inner, low[0] + 2 * BOARD, rim)),
        ((back, high[0] - 2 * BOARD, low[1]), (inner, high[0], rim)),
        ((back, low[0], low[1]), (back + 2 * BOARD, high[0], rim)),
    ]
    corners = [np.array(np.meshgrid(*zip(a, b, strict=True))).reshape(3, -1).T @ frame for a, b in boxes]
    found = [hull(c) for c in corners]
    return [p for p in found if p is not None]


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


def slabs(
    vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"], direction: Float[np.ndarray, "3"]
) -> list[Piece] | None:
    """A part cut across ``direction`` wherever its cross-section changes: a board, the arm of its handle, the handle.
    None where it is the same everywhere."""
    cloud = dense(vertices, faces)
    along = cloud @ direction
    low, high = float(along.min()), float(along.max())
    count = max(1, round((high - low) / SLAB))
    edges = np.linspace(low, high, count + 1)
    u = np.cross(direction, [0.0, 0, 1] if abs(direction[2]) < 0.7 else [1.0, 0, 0])
    u /= np.linalg.norm(u)
    flat = cloud @ np.stack([u, np.cross(direction, u)]).T
    spans = []
    for a, b in pairwise(edges):
        own = flat[(along >= a - 1e-6) & (along <= b + 1e-6)]
        spans.append(np.concatenate([own.min(axis=0), own.max(axis=0)]) if len(own) else None)
    groups: list[list[int]] = []
    box = None
    for i, span in enumerate(spans):
        if span is None:
            box = None
            continue
        if box is None or np.abs(span - box).max() > ALIKE:
            groups.append([])
            box = span
        groups[-1].append(i)
    if len(groups) < 2:
        return None
    out = [hull(cloud[(along >= edges[g[0]] - 1e-6) & (along <= edges[g[-1] + 1] + 1e-6)]) for g in groups]
    found = [p for p in out if p is not None]
    return found if len(found) > 1 else None


def dense(vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"]) -> Float[np.ndarray, "n 3"]:
    """Points on the surface, no two neighbours further apart than half a slab."""
    out = [vertices]
    tri = vertices[faces]
    for _ in range(7):
        long = np.linalg.norm(tri - tri[:, [1, 2, 0]], axis=-1).max(axis=1) > SLAB / 2
        tri = tri[long]
        if not len(tri):
            break
        a, b, c = tri[:, 0], tri[:, 1], tri[:, 2]
        d, e, f = (a + b) / 2, (b + c) / 2, (c + a) / 2
        out.append(np.concatenate([d, e, f]))
        tri = np.concatenate([np.stack(t, axis=1) for t in ((a, d, f), (d, b, e), (f, e, c), (d, e, f))])
    return np.concatenate(out)


def board_normal(vertices: Float[np.ndarray, "v 3"]) -> Float[np.ndarray, "3"]:
    """Across the plane of most points: handles pull a plain fit aside."""
    centre = np.median(vertices, axis=0)
    normal = np.linalg.svd(vertices - vertices.mean(axis=0), full_matrices=False)[2][-1]
    for _ in range(6):
        off = np.abs((vertices - centre) @ normal)
        near = vertices[off <= max(np.percentile(off, 60), 1e-4)]
        centre = near.mean(axis=0)
        normal = np.linalg.svd(near - centre, full_matrices=False)[2][-1]
    return normal
