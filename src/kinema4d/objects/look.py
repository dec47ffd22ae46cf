"""What a model of unseen objects is shown: points of every piece of a mesh, in its unit box.

A connected part that keeps its form is one piece. One that bends is cut into patches, which move as pieces that hang together; its vertices follow
the patches around them (NeuROK, section 4.1: "averaging the deformations over nearest sampled points").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

JITTER, ROUND = 0.02, 0.02
"""Radians by which an object is turned at random; and what is so little square has no direction."""
ROUNDS = 6
"""Of Lloyd's method, which makes patches even."""
AROUND = 4
"""Patches that a vertex follows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """A mesh in pieces."""

    face: Int64[np.ndarray, " f"]
    """Which piece a triangle is of."""
    share: Float64[np.ndarray, "v c"]
    """How much each vertex follows each piece; rows sum to one."""
    patch: Bool[np.ndarray, " c"]
    """Pieces that are patches of something that bends."""

    @property
    def count(self) -> int:
        """Pieces."""
        return len(self.patch)


def cut(vertices: Float64[np.ndarray, "v 3"], faces: np.ndarray, label: np.ndarray, bends: Sequence[bool] | np.ndarray, most: int) -> Cut:  # fmt: skip
    """By connected part ``label`` [v], of which those that bend are cut into patches, as many as there may be pieces."""
    count = int(label.max()) + 1
    bends = np.asarray(bends, bool)
    soft = np.flatnonzero(bends)
    if count - len(soft) + 2 * len(soft) > most:
        raise ValueError(f"the object has {count} parts that do not touch; the model knows at most {most}")
    share, face, patch = np.zeros((len(vertices), most)), np.zeros(len(faces), np.int64), list[bool]()
    whose = label[faces[:, 0]]
    corner = vertices[faces]
    area = np.linalg.norm(np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]), axis=1) / 2
    left = most - (count - len(soft))
    total = sum(area[whose == c].sum() for c in soft)
    for c in range(count):
        mine, own = np.flatnonzero(whose == c), np.flatnonzero(label == c)
        first = len(patch)
        if not bends[c]:
            face[mine], share[own, first] = first, 1.0
            patch.append(False)
            continue
        many = int(np.clip(left * area[mine].sum() / max(total, 1e-300), 2, min(left, len(mine))))
        seeds, near = _patches(corner[mine].mean(axis=1), area[mine], many)
        face[mine] = first + near
        share[own, first : first + len(seeds)] = _shares(vertices[own], seeds)
        patch += [True] * len(seeds)
    return Cut(face=face, share=share[:, : len(patch)], patch=np.array(patch))


def _patches(x: Float64[np.ndarray, "f 3"], area: Float64[np.ndarray, " f"], many: int) -> tuple[Float64[np.ndarray, "s 3"], Int64[np.ndarray, " f"]]:  # fmt: skip
    """Middles of evenly spread patches of triangles, and which a triangle is of."""
    seeds = [int(np.linalg.norm(x - x.mean(axis=0), axis=1).argmax())]
    far = np.linalg.norm(x - x[seeds[0]], axis=1)
    while len(seeds) < many and far.max() > 0:
        seeds.append(int(far.argmax()))
        far = np.minimum(far, np.linalg.norm(x - x[seeds[-1]], axis=1))
    middle = x[seeds]
    for _ in range(ROUNDS):
        near = np.linalg.norm(x[:, None] - middle, axis=2).argmin(axis=1)
        weight = np.bincount(near, area, len(middle))
        sums = np.stack([np.bincount(near, area * x[:, i], len(middle)) for i in range(3)], 1)
        middle = np.where(weight[:, None] > 0, sums / np.maximum(weight, 1e-300)[:, None], middle)
    _, near = np.unique(np.linalg.norm(x[:, None] - middle, axis=2).argmin(axis=1), return_inverse=True)
    weight = np.bincount(near, area)
    return np.stack([np.bincount(near, area * x[:, i]) for i in range(3)], 1) / weight[:, None], near


def _shares(x: Float64[np.ndarray, "v 3"], middle: Float64[np.ndarray, "s 3"]) -> Float64[np.ndarray, "v s"]:
    """Of the nearest patches, smooth: a patch counts nothing where it ceases to be one of them."""
    far = np.linalg.norm(x[:, None] - middle, axis=2)
    many = min(AROUND, len(middle))
    edge = np.sort(far, axis=1)[:, min(many, len(middle) - 1)][:, None] * (1 + 1e-9)
    out = np.where(far <= edge, np.square(1 - np.minimum(far / np.maximum(edge, 1e-300), 1)) / np.maximum(far, 1e-3 * edge + 1e-300), 0)  # fmt: skip
    total = out.sum(axis=1, keepdims=True)
    nearest = np.eye(len(middle))[far.argmin(axis=1)]
    return np.where(total > 0, out / np.where(total > 0, total, 1), nearest)


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """Points of an object's pieces, in its unit box."""

    points: Float32[np.ndarray, "p c m 3"]
    """Of one pose or of several."""
    normals: Float32[np.ndarray, "c m 3"]
    """In the first."""
    boxes: Float32[np.ndarray, "c 6"]
    """Lowest and highest corner of each piece's own box, in the first."""
    patch: Bool[np.ndarray, " c"]
    """Pieces that are patches of something that bends."""
    there: Bool[np.ndarray, " c"]
    """Which pieces exist."""
    turn: Float64[np.ndarray, "3 3"]
    """By which the object was turned."""


def look_at(
    poses: Float64[np.ndarray, "p v 3"], faces: np.ndarray, pieces: Cut, rng: np.random.Generator, *, points: int, most: int, quarter: int | None = None
) -> Look:  # fmt: skip
    """Draw points on every piece; the first pose is the one that is seen, its box the unit, and all are turned about the vertical so that most of what is
    upright looks along an axis, and by so many quarters (at random without)."""
    if pieces.count > most:
        raise ValueError(f"the object has {pieces.count} pieces; the model knows at most {most}")
    m = points
    middle, size = box_of(poses[0])
    if quarter is None:
        quarter = int(rng.integers(4))
    a = quarter * np.pi / 2 - squared(poses[0], faces) + JITTER * rng.normal()
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    unit = (poses - middle) / size @ turn.T
    out, normals, boxes = np.zeros((len(poses), most, m, 3)), np.zeros((most, m, 3)), np.zeros((most, 6))
    for c in range(pieces.count):
        mine = faces[pieces.face == c]
        corner = unit[0][mine]
        boxes[c] = np.concatenate([corner.min(axis=(0, 1)), corner.max(axis=(0, 1))])
        up = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
        area = np.linalg.norm(up, axis=1)
        which = rng.choice(len(mine), m, p=area / area.sum())
        share = np.sort(rng.random((m, 2)), axis=1)
        share = np.stack([share[:, 0], share[:, 1] - share[:, 0], 1 - share[:, 1]], 1)
        out[:, c] = np.einsum("mk,pmkx->pmx", share, unit[:, mine[which]])
        normals[c] = up[which] / area[which, None]
    single = lambda x: x.astype(np.float32)  # noqa: E731
    return Look(
        points=single(out), normals=single(normals), boxes=single(boxes), patch=np.pad(pieces.patch, (0, most - pieces.count)),
        there=np.arange(most) < pieces.count, turn=turn,
    )  # fmt: skip


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
