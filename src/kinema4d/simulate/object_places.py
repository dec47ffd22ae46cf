"""Places on the surface of an object: where it is pushed, held and led, and where it may touch something.

Each is a mean of the vertices of its triangle, with next to no mass, so that it follows the surface exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import csr_matrix
from scipy.spatial import ConvexHull, KDTree, QhullError

from kinema4d.objects.fit import Fitted
from kinema4d.objects.solid import Mesh
from kinema4d.simulate.object_wish import Vector

OFF = 0.05
"""Distance from the surface, of the size, beyond which a place is not on the object."""
TOUCHING = 300
"""Vertices at most that may touch the floor."""
SPACING, SAMPLES = 0.025, 2500
"""Of the size, between points that may touch an obstacle; and how many there are at most, about."""


class Marks:
    """Points of the surface, by their triangle."""

    def __init__(self, mesh: Mesh, moves: np.ndarray) -> None:
        self.mesh, self.moves = mesh, moves
        self.rows: list[csr_matrix] = []
        self.flags: list[str] = []

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.rows)

    def put(self, place: Vector, what: str, *, moving: bool = False) -> int | None:
        """Number of the mark there; one on what stands still is flagged, and None where it has to be ``moving``."""
        from trimesh.triangles import closest_point, points_to_barycentric

        mesh, at = self.mesh, np.array(place, np.float64)
        corners = mesh.vertices[mesh.faces]
        near = np.asarray(closest_point(corners, np.tile(at, (len(corners), 1))))
        away = np.linalg.norm(near - at, axis=1)
        away = np.where(np.isfinite(away), away, np.inf)  # triangles without area have no nearest point
        here = int(away.argmin())
        if away[here] > OFF * mesh.size:
            raise ValueError(
                f"{what} at {text(place)} m is {away[here]:.3g} m off the surface, allowed are {OFF * mesh.size:.3g} m; "
                f"the nearest point on it is {text(near[here])} (places are those of the mesh at rest)"
            )
        share = np.asarray(points_to_barycentric(corners[here][None], near[here][None]))[0]
        share = np.clip(np.nan_to_num(share, nan=1 / 3), 0, 1)
        share = np.where(share < 1e-9, 0, share) / share[share >= 1e-9].sum()
        corner = mesh.faces[here][share > 0]
        if not self.moves[corner].any():
            self.flags.append(f"{what} at {text(place)} m is on what stands still: it does nothing")
            if moving:
                return None
        row = csr_matrix((share[share > 0], (np.zeros(len(corner), int), corner)), shape=(1, len(mesh.vertices)))
        self.rows.append(row)
        return len(self.rows) - 1


def corners(fitted: Fitted, moves: Bool[np.ndarray, " v"]) -> Int64[np.ndarray, " n"]:
    """Vertices that can come to lie on a floor: of a piece that keeps its form its corners, of what bends all."""
    out, v = [], fitted.mesh.vertices
    whose, count = np.unique(fitted.piece, return_counts=True)
    for piece in whose[count > 3]:
        mine = np.flatnonzero((fitted.piece == piece) & moves)
        with suppress(QhullError):  # it is flat
            mine = mine[ConvexHull(v[mine]).vertices] if len(mine) else mine
        out.append(mine)
    out.append(np.flatnonzero(np.isin(fitted.piece, whose[count <= 3]) & moves))
    found = np.sort(np.concatenate(out)).astype(np.int64)
    return found[:: max(1, -(-len(found) // TOUCHING))]


def rows_of(vertices: Int64[np.ndarray, " n"], count: int) -> csr_matrix:
    """Vertices as means of themselves."""
    return csr_matrix((np.ones(len(vertices)), (np.arange(len(vertices)), vertices)), shape=(len(vertices), count))


def samples(mesh: Mesh, moves: Bool[np.ndarray, " v"]) -> tuple[csr_matrix, float]:
    """Points all over the surface of what moves, as means of vertices, and how far a point of it is from one at most, metres: vertices where
    they will do, then points of edges, then of faces, none closer to another than the spacing if they look the same way."""
    faces = mesh.faces[moves[mesh.faces].any(axis=1)]
    v, size = mesh.vertices, mesh.size
    a, b, c = (v[faces[:, i]] for i in range(3))
    normal = np.cross(b - a, c - a)
    area = np.linalg.norm(normal, axis=1) / 2
    faces, area, normal = faces[area > 0], area[area > 0], normal[area > 0] / (2 * area[area > 0, None])
    apart = max(SPACING * size, float(np.sqrt(area.sum() / (0.7 * SAMPLES))))
    longest = np.linalg.norm(v[faces] - v[np.roll(faces, 1, axis=1)], axis=2).max(axis=1, initial=0.0)
    cuts = np.clip(np.ceil(1.5 * longest / apart).astype(int), 1, 100)
    share, at = [np.zeros((0, 3))], [np.zeros(0, np.int64)]
    for n in np.unique(cuts):
        i, j = np.triu_indices(n + 1)
        own = np.stack([i, j - i, n - j], 1) / n
        mine = np.flatnonzero(cuts == n)
        share.append(np.tile(own, (len(mine), 1)))
        at.append(np.repeat(mine, len(own)))
    shares, which = np.concatenate(share), np.concatenate(at)
    x = np.einsum("nc,nci->ni", shares, v[faces[which]])
    order = np.argsort((shares > 0).sum(axis=1), kind="stable")
    seen = np.concatenate([x, apart * normal[which]], 1)[order]  # what looks another way is far
    trees, open_, kept = KDTree(seen), np.ones(len(seen), bool), []
    for i in range(len(seen)):
        if open_[i]:
            kept.append(i)
            open_[trees.query_ball_point(seen[i], 0.999 * apart)] = False
    pick = order[kept]
    _, first = np.unique(
        np.round(x[pick] / (1e-6 * size)), axis=0, return_index=True
    )  # a corner has one normal per face
    pick = pick[np.sort(first)]
    n = np.repeat(np.arange(len(pick)), 3)
    out = csr_matrix((shares[pick].ravel(), (n, faces[which[pick]].ravel())), shape=(len(pick), len(v)))
    out.eliminate_zeros()
    return out, apart


def text(x: Sequence[float] | np.ndarray) -> str:
    """Three numbers with commas."""
    return ",".join(f"{v:.3g}" for v in x)


def places(mesh: Mesh, rows: csr_matrix) -> Float64[np.ndarray, "n 3"]:
    """Where they are at rest."""
    return np.asarray(rows @ mesh.vertices)
