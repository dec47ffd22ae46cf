"""Slender tubes, such as ropes: their rings, one after the other from a tip, and rods between some of them on ball joints."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from jaxtyping import Float64, Int64

FLAT = 0.35
"""Of a ring's radius, how far from one plane its vertices may be."""
RODS = 20
"""Of a chain at most; a longer rope has several rings per rod."""
SLENDER = 4.0
"""A tube is longer than so many times its radius."""


def rings(rest: Float64[np.ndarray, "v 3"], faces: Int64[np.ndarray, "f 3"], start: int, mine: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"] | None:  # fmt: skip
    """Which ring of a slender tube each vertex is of, counted along edges from one tip; None if it is no such tube."""
    level = np.full(len(rest), -1)
    level[start] = 0
    sides = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    for now in range(len(mine)):
        a, b = level[sides[:, 0]] == now, level[sides[:, 1]] == now
        new = np.unique(np.concatenate([sides[a, 1], sides[b, 0]]))
        new = new[level[new] < 0]
        if not len(new):
            break
        level[new] = now + 1
    ring = level[mine]
    if (ring < 0).any() or ring.max() < 3:
        return None
    ring = np.maximum(ring, 1) - 1  # the tip goes with the first ring, and a tip at the end with the last
    if (ring == ring.max()).sum() < 3:
        ring = np.minimum(ring, ring.max() - 1)
    x = rest[mine]
    middle = np.stack([x[ring == r].mean(axis=0) for r in range(ring.max() + 1)])
    along = np.gradient(middle, axis=0)
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-12)
    for r in range(1, ring.max()):
        own = x[ring == r] - middle[r]
        radius = float(np.linalg.norm(own, axis=1).mean())
        if len(own) < 3 or float(np.abs(own @ along[r]).max()) > FLAT * radius:
            return None
    wide = max(float(np.linalg.norm(x[ring == r] - middle[r], axis=1).mean()) for r in range(1, ring.max()))
    long = float(np.linalg.norm(np.diff(middle, axis=0), axis=1).sum())
    return ring if long > SLENDER * wide else None


def rod_ends(ring: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " e"]:
    """Rings at which rods begin and end."""
    last = int(ring.max())
    return np.unique(np.linspace(0, last, min(RODS, last) + 1).round().astype(int))


def rod_frame(x: Float64[np.ndarray, "n 3"], ring: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "3 3"]:
    """Columns: axes of the angles of a tube's ball joints. That about its length is the middle one: it is small, and the three are well apart while it is below a
    right angle."""
    axis = x[ring == ring.max()].mean(axis=0) - x[ring == 0].mean(axis=0)
    axis /= np.linalg.norm(axis)
    side = np.cross(axis, np.eye(3)[np.abs(axis).argmin()])
    side /= np.linalg.norm(side)
    return np.stack([side, axis, np.cross(side, axis)], axis=1)


def on_rods(
    ring: Int64[np.ndarray, " n"], ends: Int64[np.ndarray, " e"], places: Float64[np.ndarray, "r 3"], frame: Float64[np.ndarray, "3 3"]
) -> Float64[np.ndarray, "m k 6"]:  # fmt: skip
    """Twists of every ring, three angles per rod, which turns about its place."""
    last = int(ring.max())
    out = np.zeros((last + 1, 3 * (len(ends) - 1), 6))
    for i, (at, _) in enumerate(pairwise(ends)):
        share = np.where(np.arange(last + 1) > at, 1.0, np.where(np.arange(last + 1) == at, 0.5, 0.0))
        share = np.ones(last + 1) if i == 0 else share  # a ring between two rods is halfway
        for a in range(3):
            out[:, 3 * i + a, :3] = share[:, None] * frame[:, a]
            out[:, 3 * i + a, 3:] = share[:, None] * np.cross(places[i], frame[:, a])
    return out
