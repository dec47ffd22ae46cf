"""Which turns of a thing cannot be seen from its shape, so that its orientation is judged only as far as it has one.

A ball has none, a can has an axis that may point either way, a block looks the same after half a turn. Looks are left
aside: a texture that goes around a can does not make a can that stands beside its place stand better or worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import rotvec_to_matrix

SAME = 0.07
"""A turn leaves a shape alone when no sampled point comes further than this from the surface, as a share of its size;
the 28 sides of a round mesh differ from a circle by 0.006 of its radius, and the samples lie 0.03 apart."""
SAMPLES = 400
"""Points on the surface that are turned."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Symmetry:
    """Turns about the centre that leave the shape alone."""

    round: bool
    """Every turn does: a ball."""
    axis: Float[np.ndarray, "3"] | None
    """Every turn about this axis does: a can, a bottle."""
    turns: Float[np.ndarray, "n 3 3"]
    """Some turns that do, the identity first."""

    def angle(self, R_a: Float[np.ndarray, "*b 3 3"], R_b: Float[np.ndarray, "*b 3 3"]) -> Float[np.ndarray, "*b"]:
        """Smallest angle between two orientations that look alike, radians; 0 for a ball."""
        if self.round:
            return np.zeros(np.shape(R_a)[:-2])
        best = np.full(np.shape(R_a)[:-2], np.pi)
        for turn in self.turns:
            if self.axis is not None:
                cosine = ((R_a @ (turn @ self.axis)) * (R_b @ self.axis)).sum(axis=-1)
            else:
                cosine = (np.trace(np.swapaxes(R_a @ turn, -1, -2) @ R_b, axis1=-2, axis2=-1) - 1) / 2
            best = np.asarray(np.minimum(best, np.arccos(np.clip(cosine, -1, 1))))
        return np.asarray(best)


NONE = Symmetry(round=False, axis=None, turns=np.eye(3)[None])
"""Of a thing that looks different after every turn, or of which too little is known."""


def surface_points(
    vertices: Float[np.ndarray, "v 3"], faces: np.ndarray, count: int, *, seed: int = 0
) -> Float[np.ndarray, "n 3"]:
    """Points spread evenly over a surface, always the same."""
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    areas = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2
    if not areas.sum() > 0:
        raise ValueError("the surface has no area: a thing needs triangles to be found by")
    ends = np.cumsum(areas) / areas.sum()
    rng = np.random.default_rng(seed)
    face = np.searchsorted(ends, (np.arange(count) + rng.random(count)) / count).clip(max=len(faces) - 1)
    u, v = rng.random((2, count))
    fold = u + v > 1
    u, v = np.where(fold, 1 - u, u)[:, None], np.where(fold, 1 - v, v)[:, None]
    return a[face] + u * (b - a)[face] + v * (c - a)[face]


def find_symmetry(vertices: Float[np.ndarray, "v 3"], faces: np.ndarray) -> Symmetry:
    """The symmetry of a mesh about the middle of its surface."""
    return _find(np.ascontiguousarray(vertices, np.float64).tobytes(), np.ascontiguousarray(faces, np.int32).tobytes())


@lru_cache(maxsize=256)
def _find(vertex_bytes: bytes, face_bytes: bytes) -> Symmetry:
    from scipy.spatial import KDTree

    vertices = np.frombuffer(vertex_bytes).reshape(-1, 3)
    faces = np.frombuffer(face_bytes, np.int32).reshape(-1, 3)
    dense = surface_points(vertices, faces, 40 * SAMPLES)
    centre = dense.mean(axis=0)
    dense = dense - centre
    size = float(np.linalg.norm(dense, axis=1).max())
    # Makers align things with their frames; the principal axes of a shape are less exact, and come in where they differ.
    principal = np.linalg.eigh(dense.T @ dense)[1].T
    axes = [*np.eye(3), *(axis for axis in principal if np.abs(axis).max() < np.cos(np.radians(10)))]
    tree: Any = KDTree(dense)
    # Also the corners: where a shape differs from its turned self most.
    sample = np.concatenate([dense[::40], vertices - centre])

    def alike(rotvec: np.ndarray) -> bool:
        far = tree.query(sample @ rotvec_to_matrix(rotvec).T, distance_upper_bound=SAME * size)[0]
        return bool(np.isfinite(far).all())

    whole = [axis for axis in axes if all(alike(axis * angle) for angle in (0.5, 0.9, 1.9))]
    if len(whole) > 1 and any(abs(whole[0] @ other) < 0.5 for other in whole[1:]):
        return Symmetry(round=True, axis=None, turns=np.eye(3)[None])
    turns = [np.eye(3)]
    if whole:  # only whether the axis may point either way is left
        across = np.cross(whole[0], np.eye(3)[int(np.abs(whole[0]).argmin())])
        axes, angles = [across / np.linalg.norm(across)], (np.pi,)
    else:
        angles = (np.pi, np.pi / 2, -np.pi / 2)
    turns += [rotvec_to_matrix(axis * angle) for axis in axes for angle in angles if alike(axis * angle)]
    return Symmetry(round=False, axis=whole[0] if whole else None, turns=np.array(turns))
