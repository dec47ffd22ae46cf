"""Meshes with fewer vertices: those in one cell of a grid, on one part and facing one way, become one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import trimesh
from jaxtyping import Float64, Int64

STEPS = 60
"""Of five percent each, by which cells grow until few vertices are left."""


def simpler(parts: Sequence[tuple[int, trimesh.Trimesh]], most: int) -> tuple[Float64[np.ndarray, "v 3"], Int64[np.ndarray, "f 3"], Int64[np.ndarray, " v"]]:  # fmt: skip
    """Vertices, faces and whose each vertex is, of several parts together: at most ``most`` vertices.

    Exact where there were few to begin with. Thin walls keep both their sides, because vertices that face apart are not joined.
    """
    if not parts:
        raise ValueError("there is no mesh to make simpler")
    size = max(float(np.ptp(np.asarray(mesh.vertices), axis=0).max()) for _, mesh in parts)
    cell, count = 1e-6 * size, 0
    for step in range(STEPS):
        every, faces, whose, count = [], [], [], 0
        for part, mesh in parts:
            vertices, triangles = _clustered(mesh, cell)
            every.append(vertices)
            faces.append(triangles + count)
            whose.append(np.full(len(vertices), part, np.int64))
            count += len(vertices)
        if count <= most:
            return np.concatenate(every), np.concatenate(faces).astype(np.int64), np.concatenate(whose)
        cell = 0.005 * size * 1.08**step
    raise ValueError(f"the mesh keeps {count} vertices even with cells of {cell:.3g} m; allowed are {most}")


def _clustered(mesh: trimesh.Trimesh, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """One vertex per cell and way; faces that lose a corner, or are there twice, go."""
    vertices, faces = np.asarray(mesh.vertices, np.float64), np.asarray(mesh.faces)
    ways = (
        np.sign(np.round(np.asarray(mesh.vertex_normals), 1)).astype(np.int64)
        if cell > 1e-5
        else np.zeros(vertices.shape, np.int64)
    )
    key = np.concatenate([np.floor(vertices / cell + 0.5).astype(np.int64), ways], axis=1)
    _, to = np.unique(key, axis=0, return_inverse=True)
    to = to.ravel()
    share = np.bincount(to)
    middles = np.stack([np.bincount(to, vertices[:, i]) / share for i in range(3)], axis=1)
    new = to[faces]
    new = new[(new[:, 0] != new[:, 1]) & (new[:, 1] != new[:, 2]) & (new[:, 2] != new[:, 0])]
    _, first = np.unique(np.sort(new, axis=1), axis=0, return_index=True)
    new = new[np.sort(first)]
    used, back = np.unique(new, return_inverse=True)
    return middles[used], back.reshape(-1, 3)
