"""Boxes that overlap or touch, as one surface: what is hollow or bent, as parts of real things are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

SAME = 1e-7
"""Metres within which two sides are in one plane."""
_CORNERS = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])


@dataclass(frozen=True, kw_only=True, eq=False)
class Union:
    """All of them together."""

    vertices: Float64[np.ndarray, "v 3"]
    """Of the surface, metres."""
    faces: Int64[np.ndarray, "f 3"]
    """Counter-clockwise from outside."""
    half: Float64[np.ndarray, "n 3"]
    """Half sides of boxes that fill it and do not overlap."""
    middle: Float64[np.ndarray, "n 3"]
    """Of those."""


def union(half: Float64[np.ndarray, "b 3"], middle: Float64[np.ndarray, "b 3"]) -> Union | None:
    """Of boxes along the axes, on the grid of all their sides; None where two of them touch at an edge or corner only, which is no solid."""
    planes = [_planes(np.concatenate([middle[:, i] - half[:, i], middle[:, i] + half[:, i]])) for i in range(3)]
    centre = np.stack(np.meshgrid(*[(p[1:] + p[:-1]) / 2 for p in planes], indexing="ij"), -1)
    full = (np.abs(centre[:, :, :, None] - middle) < half).all(axis=-1).any(axis=-1)
    padded, quads = np.pad(full, 1), []
    for axis in range(3):
        for side in (0, 1):  # its lower and its upper faces
            there = np.argwhere(full & ~np.roll(padded, 1 - 2 * side, axis=axis)[1:-1, 1:-1, 1:-1])
            corner = np.repeat(there[:, None], 4, axis=1)
            corner[:, :, axis] += side
            corner[:, :, [(axis + 1) % 3, (axis + 2) % 3]] += _CORNERS
            quads.append(corner if side else corner[:, ::-1])
    nodes, index = np.unique(np.concatenate(quads).reshape(-1, 3), axis=0, return_inverse=True)
    index = index.reshape(-1, 4)
    faces = np.concatenate([index[:, [0, 1, 2]], index[:, [0, 2, 3]]])
    if not _solid(faces):
        return None
    cells = np.argwhere(full)
    low, high = (np.stack([planes[i][cells[:, i] + s] for i in range(3)], 1) for s in (0, 1))
    return Union(
        vertices=np.stack([planes[i][nodes[:, i]] for i in range(3)], 1), faces=faces.astype(np.int64), half=(high - low) / 2, middle=(high + low) / 2,
    )  # fmt: skip


def _planes(x: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " m"]:
    x = np.sort(x)
    return x[np.concatenate([[True], np.diff(x) > SAME])]


def _solid(faces: Sequence[Sequence[int]] | np.ndarray) -> bool:
    """Whether two triangles meet at every edge, and all of them around a vertex hang together."""
    faces = np.asarray(faces)
    edges = np.sort(faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    if (np.unique(edges, axis=0, return_counts=True)[1] != 2).any():
        return False
    after: dict[int, dict[int, int]] = {}
    for a, b, c in faces.tolist():
        for x, y, z in ((a, b, c), (b, c, a), (c, a, b)):
            after.setdefault(x, {})[y] = z
    for fan in after.values():
        first = next(iter(fan))
        now, seen = fan[first], 1
        while now != first:
            now, seen = fan[now], seen + 1
        if seen < len(fan):
            return False
    return True


def connect(solids: Sequence[tuple[str, tuple[float, float, float], tuple[float, float, float]]]) -> Union | None:
    """The boxes among some solids as one; None where there are fewer than two, or they are no solid together."""
    boxes = [(size, at) for kind, size, at in solids if kind == "box"]
    return union(np.array([s for s, _ in boxes]), np.array([a for _, a in boxes])) if len(boxes) > 1 else None
