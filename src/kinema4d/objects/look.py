"""What a network is shown of an object: points of every connected part, in its unit box."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, Int64

JITTER, ROUND = 0.02, 0.02
"""Radians by which an object is turned at random; and what is so little square has no direction."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """Points of an object's parts, in its unit box."""

    points: Float32[np.ndarray, "c m 3"]
    """On their surfaces."""
    normals: Float32[np.ndarray, "c m 3"]
    """There."""
    boxes: Float32[np.ndarray, "c 6"]
    """Lowest and highest corner of each part's own box."""
    turn: Float64[np.ndarray, "3 3"]
    """By which the object was turned."""


def look_at(
    vertices: Float64[np.ndarray, "v 3"], faces: Int64[np.ndarray, "f 3"], label: Int64[np.ndarray, " v"], rng: np.random.Generator, *, points: int, quarter: int | None = None
) -> Look:  # fmt: skip
    """Draw points on every part ``label`` [v]. The object's box is the unit, and it is turned about the vertical so that most of what is upright looks along an axis, and by so
    many quarters (at random without)."""
    middle, size = box_of(vertices)
    if quarter is None:
        quarter = int(rng.integers(4))
    a = quarter * np.pi / 2 - squared(vertices, faces) + JITTER * rng.normal()
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    unit = (vertices - middle) / size @ turn.T
    at, normals = surface(unit, faces, label, points, rng)
    boxes = [np.concatenate([unit[label == c].min(axis=0), unit[label == c].max(axis=0)]) for c in range(len(at))]
    single = lambda x: np.asarray(x, np.float32)  # noqa: E731
    return Look(points=single(at), normals=single(normals), boxes=single(boxes), turn=turn)


def squared(vertices: Float64[np.ndarray, "v 3"], faces: np.ndarray) -> float:
    """Angle about the vertical, within an eighth of a turn, by which most of the upright surface is off the axes (0 for what is round)."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    up = np.cross(b - a, c - a)
    flat = np.hypot(up[:, 0], up[:, 1])
    total = (flat * np.exp(4j * np.arctan2(up[:, 1], up[:, 0]))).sum()
    return float(np.angle(total) / 4) if abs(total) > ROUND * flat.sum() else 0.0


def box_of(vertices: Float64[np.ndarray, "v 3"]) -> tuple[Float64[np.ndarray, "3"], float]:
    """Middle and diagonal of the box around an object."""
    low, high = vertices.min(axis=0), vertices.max(axis=0)
    return (low + high) / 2, float(np.linalg.norm(high - low))


def surface(vertices: Float64[np.ndarray, "v 3"], faces: Int64[np.ndarray, "f 3"], label: Int64[np.ndarray, " v"], many: int, rng: np.random.Generator) -> tuple[Float64[np.ndarray, "c m 3"], Float64[np.ndarray, "c m 3"]]:  # fmt: skip
    """Points drawn on the surface of every piece, and its normals there."""
    whose = label[faces[:, 0]]
    corner = vertices[faces]
    up = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    area = np.linalg.norm(up, axis=1)
    points, normals = np.zeros((int(label.max()) + 1, many, 3)), np.zeros((int(label.max()) + 1, many, 3))
    for c in range(len(points)):
        mine = np.flatnonzero(whose == c)
        which = mine[rng.choice(len(mine), many, p=area[mine] / area[mine].sum())]
        share = np.sort(rng.random((many, 2)), axis=1)
        share = np.stack([share[:, 0], share[:, 1] - share[:, 0], 1 - share[:, 1]], 1)
        points[c], normals[c] = np.einsum("mk,mkx->mx", share, corner[which]), up[which] / area[which, None]
    return points, normals
