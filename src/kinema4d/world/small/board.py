"""Board: doors, lids and drawers as what they are: a flat board that ends at its hinge, or a front, with a handle.

A network's completion of a thin board that is seen at a slant is a lump several times too thick, and a hand that should
push it shut is stopped by it. The hinge's axis lies in the board, so that the board is a line in the plane across the
axis: found by the seen points, with the pivot at one end. The plane in turn says more exactly where the axis points. A
shut door of which no face is seen lies on the face of its cabinet that its hinge is at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from kinema4d.world.small.pieces import Piece, plain
from kinema4d.world.small.shape import Shape

THICK = 0.008
"""Of boards: only one side is seen, metres."""
NEAR, OFF = 0.003, 0.005
"""Seen points this near to the plane are the board's; further off, its handle's, metres."""
PIVOT = 0.02
"""How far the pivot may be from the plane, metres."""
SHARE, LEAST_SIDE = 0.4, 0.035
"""Share of the points that must be the board's, and its least side, metres."""
ROD = 0.012
"""Least side of a handle: only some sides of it are seen, metres."""
FRAME = 0.011
"""A chest shows so much of itself around the front of its drawer, metres."""
SLAB = 0.006
"""Handles are cut into slabs of this thickness, metres."""


@dataclass(frozen=True, eq=False)
class Board:
    """A board about a hinge, and what is on it."""

    pieces: tuple[Piece, ...]
    """Boxes: the board first, then its handle."""
    axis: Float[np.ndarray, "3"]
    """Direction of the hinge, in the plane of the board."""


def hinged_board(
    points: Float[np.ndarray, "n 3"],
    axis: Float[np.ndarray, "3"],
    pivot: Float[np.ndarray, "3"],
    eye: Float[np.ndarray, "3"],
    pixel: float,
    support: float = 0.0,
) -> Board | None:
    """The board about a hinge and its handle, in the frame of ``points``; None where no board is seen."""
    line = _line(points, axis, pivot)
    if line is None:
        return None
    normal, own = _plane(points, *line)
    axis = axis - (axis @ normal) * normal
    axis /= np.linalg.norm(axis)
    along = np.cross(axis, normal)
    p = points - pivot
    normal = normal if (eye - points[own].mean(axis=0)) @ normal > 0 else -normal
    face = float(np.median(p[own] @ normal))
    frame = np.stack([along, axis, normal])
    spans = [_span(p[own] @ u, pixel) for u in (along, axis)]
    low, high = (min(spans[0][0], 0.0), spans[1][0]), (max(spans[0][1], 0.0), spans[1][1])
    if min(high[0] - low[0], high[1] - low[1]) < LEAST_SIDE:
        return None
    board = _box(np.array([*low, face - THICK]), np.array([*high, face]), frame, pivot)
    local = p[points[:, 2] > support + OFF] @ frame.T
    handle = _handle(local, face, low, high, frame @ (eye - pivot), frame, pivot)
    return Board((board, *handle), axis)


def shut_board(
    points: Float[np.ndarray, "n 3"],
    axis: Float[np.ndarray, "3"],
    pivot: Float[np.ndarray, "3"],
    eye: Float[np.ndarray, "3"],
    cabinet: Shape,
    support: float = 0.0,
) -> Board | None:
    """A shut door that covers the face of its ``cabinet`` (a box) before which its handle is seen; None where its hinge
    is not at that face."""
    if cabinet.half is None or abs(axis[2]) < 0.9:
        return None
    sides, middle = _sides(cabinet)
    out = sides @ (np.median(points, axis=0) - middle) / cabinet.half
    k = int(np.abs(out).argmax())
    frame = _face(sides, k, float(out[k]))
    face = float((middle - pivot) @ frame[2] + cabinet.half[k])
    if abs(face) > 1.5 * PIVOT:
        return None
    centre, wide, tall = frame @ (middle - pivot), cabinet.half[1 - k], (cabinet.high - cabinet.low) / 2
    low, high = (centre[0] - wide, centre[1] - tall), (centre[0] + wide, centre[1] + tall)
    board = _box(np.array([*low, face]), np.array([*high, face + THICK]), frame, pivot)
    local = (points[points[:, 2] > support + OFF] - pivot) @ frame.T
    handle = _handle(local, face + THICK, low, high, frame @ (eye - pivot), frame, pivot)
    return Board((board, *handle), axis)


def shut_front(
    points: Float[np.ndarray, "n 3"],
    axis: Float[np.ndarray, "3"],
    eye: Float[np.ndarray, "3"],
    chest: Shape,
    support: float = 0.0,
) -> tuple[Piece, ...] | None:
    """Front and handle of a shut drawer that opens along ``axis`` out of its ``chest`` (a box): the front lies in the
    chest's face, however little of it is seen. None where the chest has no such face."""
    if chest.half is None:
        return None
    sides, middle = _sides(chest)
    k = int(np.abs(sides @ axis).argmax())
    frame = _face(sides, k, float(sides[k] @ axis))
    if frame[2] @ axis < 0.95:
        return None
    wide, tall = chest.half[1 - k] - FRAME, (chest.high - chest.low) / 2 - FRAME
    if min(wide, tall) < 0.01:
        return None
    low, high, face = (-wide, -tall), (wide, tall), float(chest.half[k])
    front = _box(np.array([*low, face - THICK]), np.array([*high, face]), frame, middle)
    local = (points[points[:, 2] > support + OFF] - middle) @ frame.T
    local = local[local[:, 2] > face - THICK]  # nothing of it is behind its front
    return (front, *_handle(local, face, low, high, frame @ (eye - middle), frame, middle))


def _sides(box: Shape) -> tuple[Float[np.ndarray, "2 3"], Float[np.ndarray, "3"]]:
    """Directions of the level sides of a box, and its middle."""
    c, s = np.cos(box.yaw), np.sin(box.yaw)
    return np.array([[c, s, 0.0], [-s, c, 0.0]]), np.array([*box.centre, (box.low + box.high) / 2])


def _face(sides: Float[np.ndarray, "2 3"], k: int, sign: float) -> Float[np.ndarray, "3 3"]:
    """The frame of a face of a box: level along it, up, out of it on the side that ``sign`` says."""
    normal, up = sides[k] * np.sign(sign), np.array([0.0, 0.0, 1.0])
    return np.stack([np.cross(up, normal), up, normal])


def _plane(
    points: Float[np.ndarray, "n 3"],
    normal: Float[np.ndarray, "3"],
    own: Bool[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, "3"], Bool[np.ndarray, " n"]]:
    """The normal of the plane through the board's points, whichever way the axis was seen, and these points."""
    for _ in range(4):
        middle = points[own].mean(axis=0)
        found = np.linalg.svd(points[own] - middle, full_matrices=False)[2][-1]
        if abs(found @ normal) < 0.97:  # a sliver: its own plane is uncertain
            break
        near = np.abs((points - middle) @ found) < NEAR
        if near.sum() < own.sum():
            break
        normal, own = found, near
    return normal, own


def _line(
    points: Float[np.ndarray, "n 3"], axis: Float[np.ndarray, "3"], pivot: Float[np.ndarray, "3"]
) -> tuple[Float[np.ndarray, "3"], Bool[np.ndarray, " n"]] | None:
    """The board's normal, and which points are its: what most points are near to."""
    e1 = np.cross(axis, [0.0, 0, 1] if abs(axis[2]) < 0.7 else [1.0, 0, 0])
    e1 /= np.linalg.norm(e1)
    e2 = np.cross(axis, e1)
    flat = (points - pivot) @ np.stack([e1, e2]).T
    rng = np.random.default_rng(0)
    pairs = flat[rng.integers(len(flat), size=(400, 2))]
    d = pairs[:, 1] - pairs[:, 0]
    length = np.linalg.norm(d, axis=1)
    pairs, d = pairs[length > 0.015], d[length > 0.015] / length[length > 0.015, None]
    if not len(d):
        return None
    n = np.stack([-d[:, 1], d[:, 0]], axis=1)
    some = flat[:: max(1, len(flat) // 400)]
    off = np.abs(some @ n.T - (pairs[:, 0] * n).sum(axis=1))
    count = np.where(np.abs((pairs[:, 0] * n).sum(axis=1)) < PIVOT, (off < NEAR).sum(axis=0), 0)
    best = int(count.argmax())
    direction, point = d[best], pairs[best, 0]
    own = np.zeros(len(flat), bool)
    for _ in range(4):
        normal = np.array([-direction[1], direction[0]])
        own = np.abs((flat - point) @ normal) < NEAR
        if own.sum() < max(20, SHARE * len(flat)):
            return None
        point = flat[own].mean(axis=0)
        direction = np.linalg.svd(flat[own] - point, full_matrices=False)[2][0]
    along = direction[0] * e1 + direction[1] * e2
    return np.cross(along, axis), own


def _span(values: Float[np.ndarray, " n"], pixel: float) -> tuple[float, float]:
    low, high = np.percentile(values, [0.5, 99.5])
    return float(low) - pixel / 2, float(high) + pixel / 2


def _box(
    low: Float[np.ndarray, "3"],
    high: Float[np.ndarray, "3"],
    frame: Float[np.ndarray, "3 3"],
    origin: Float[np.ndarray, "3"],
) -> Piece:
    T = np.eye(4)
    T[:3, :3] = frame.T if np.linalg.det(frame) > 0 else frame.T * [1, 1, -1]
    T[:3, 3] = origin + (low + high) / 2 @ frame
    x, y, z = ((high - low) / 2).tolist()
    return plain("box", (x, y, z), T)


def _handle(
    local: Float[np.ndarray, "n 3"],
    face: float,
    low: Sequence[float],
    high: Sequence[float],
    looks: Float[np.ndarray, "3"],
    frame: Float[np.ndarray, "3 3"],
    origin: Float[np.ndarray, "3"],
) -> list[Piece]:
    """Boxes around what sticks out of the board on either side, cut where it becomes wider or narrower."""
    over = (local[:, :2] > np.array(low) - 0.015).all(axis=1) & (local[:, :2] < np.array(high) + 0.015).all(axis=1)
    out = []
    for sign, start in ((1.0, face + OFF), (-1.0, THICK - face + OFF)):
        height = sign * local[:, 2]
        own = local[over & (height > start)]
        if len(own) < 8:
            continue
        height = sign * own[:, 2]
        # A few stray points far out are no handle.
        far = float(np.percentile(height, 98))
        edges = np.arange(start - OFF, far + SLAB, SLAB)
        groups: list[list[np.ndarray]] = []
        box = None
        for a in edges:
            mine = own[(height >= a) & (height < a + SLAB)]
            if len(mine) < 2:
                continue
            span = np.percentile(mine[:, :2], [4, 96], axis=0).ravel()
            if box is None or np.abs(span - box).max() > 2 * SLAB:
                groups.append([])
                box = span
            groups[-1].append(mine)
        for group in groups:
            cloud = np.concatenate(group)
            small, large = np.percentile(cloud, [3, 97], axis=0)
            for k in range(3):  # the unseen side is the one away from the eye
                lack = ROD - (large[k] - small[k])
                if lack > 0:
                    small[k], large[k] = (
                        (small[k] - lack, large[k]) if looks[k] > large[k] else (small[k], large[k] + lack)
                    )
            out.append(_box(small, large, frame, origin))
    return out
