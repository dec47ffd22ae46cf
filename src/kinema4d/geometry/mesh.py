"""Triangle meshes with colour: what a link or an object looks like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int32, UInt8

from kinema4d.geometry import mesh_kernels

CREASE_DEGREES = 40.0
"""Faces that meet at a sharper angle keep their edge; flatter ones are shaded smoothly."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Mesh:
    """A coloured triangle mesh in its own frame."""

    vertices: Float[np.ndarray, "v 3"]
    """Metres."""
    faces: Int32[np.ndarray, "f 3"]
    """Vertex indices."""
    colors: UInt8[np.ndarray, "f 3"]
    """Base colour of each face."""
    uvs: Float32[np.ndarray, "f 3 2"] | None = None
    """Texture coordinates of each corner, v up."""
    texture: UInt8[np.ndarray, "h w 3"] | None = None
    """Image that replaces the base colour where ``uvs`` are given."""

    def __post_init__(self) -> None:
        if len(self.faces) and not (self.faces.min() >= 0 and self.faces.max() < len(self.vertices)):
            raise ValueError(f"mesh faces refer to vertices outside 0..{len(self.vertices) - 1}")
        if not np.isfinite(self.vertices).all():
            raise ValueError("mesh has a non-finite vertex")


def weld(vertices: Float[np.ndarray, "v 3"]) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the distinct vertices, and for each vertex which of those it equals (bit for bit)."""
    return mesh_kernels.weld(np.ascontiguousarray(vertices + 0.0, np.float64).view(np.int64))


def cluster(mesh: Mesh, cell: float) -> Mesh:
    """Merge all vertices in each cube of side ``cell`` metres; crude, but never fails and needs no library."""
    key = np.floor(mesh.vertices / cell)
    _, group = weld(key)
    n = int(group.max(initial=-1)) + 1
    sums = np.stack([np.bincount(group, mesh.vertices[:, i], n) for i in range(3)], axis=1)
    faces = group[mesh.faces]
    a, b, c = faces.T
    keep = np.flatnonzero((a != b) & (b != c) & (c != a))
    # Two sheets that fall together leave the same triangle twice.
    keep = keep[np.unique(np.sort(faces[keep], axis=1), axis=0, return_index=True)[1]]
    return Mesh(
        vertices=sums / np.bincount(group, minlength=n)[:, None],
        faces=faces[keep].astype(np.int32),
        colors=mesh.colors[keep],
    )


def corner_normals(mesh: Mesh) -> Float32[np.ndarray, "f 3 3"]:
    """A unit normal per face corner: smooth across flat edges, split at creases."""
    v = mesh.vertices
    size = max(float(np.ptp(v, axis=0).max(initial=0.0)), 1e-12)
    first, same = mesh_kernels.weld(np.round(v / size * 1e6).astype(np.int64))
    a, b, c = (v[mesh.faces[:, i]] for i in range(3))
    cross = np.cross(b - a, c - a)  # length = twice the area: the averaging weight
    return mesh_kernels.corner_normals(cross, same[mesh.faces], len(first), np.cos(np.radians(CREASE_DEGREES)))
