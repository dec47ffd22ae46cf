"""Robot meshes for a browser: one colour per piece, few vertices, edges kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, UInt8, UInt32

from kinema4d.geometry.mesh import Mesh, cluster, corner_normals
from kinema4d.robot.model import Robot

MAX_COLORS = 12
"""Pieces per link: a textured link is shown in its most common colours."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """Part of a link in one colour."""

    link: int
    """Index of the link it moves with."""
    vertices: Float32[np.ndarray, "v 3"]
    """Metres in the link's frame, doubled along sharp edges so that the browser shades them sharply."""
    faces: UInt32[np.ndarray, "f 3"]
    """Vertex indices."""
    color: tuple[int, int, int]
    """Base colour."""


def pieces(robot: Robot, *, max_triangles: int | None = None) -> list[Piece]:
    """A robot's visuals, simplified until there are at most ``max_triangles`` in all."""
    meshes = [(v.link, _face_colored(v.mesh)) for v in robot.visuals if len(v.mesh.faces)]
    cell = 1e-3
    while max_triangles is not None and sum(len(m.faces) for _, m in meshes) > max_triangles and cell < 0.1:
        meshes = [(link, cluster(mesh, cell)) for link, mesh in meshes]
        cell *= 1.5
    out = []
    for link in sorted({link for link, _ in meshes}):
        mine = [m for at, m in meshes if at == link and len(m.faces)]
        if not mine:
            continue
        corners = np.concatenate([np.concatenate([m.vertices[m.faces], corner_normals(m)], axis=2) for m in mine])
        colors, which = few_colors(np.concatenate([m.colors for m in mine]))
        for i, color in enumerate(colors):
            out.append(_piece(link, corners[which == i], color))
    return out


def few_colors(colors: UInt8[np.ndarray, "f 3"]) -> tuple[list[tuple[int, int, int]], np.ndarray]:
    """At most ``MAX_COLORS`` colours, and for each face which of them it takes."""
    distinct, which, count = np.unique(colors, axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    if len(distinct) > MAX_COLORS:
        kept = np.argsort(-count, kind="stable")[:MAX_COLORS]
        distance = np.linalg.norm(distinct[:, None].astype(float) - distinct[kept].astype(float), axis=2)
        distinct, which = distinct[kept], distance.argmin(axis=1)[which]
    return [(int(r), int(g), int(b)) for r, g, b in distinct], which


def _face_colored(mesh: Mesh) -> Mesh:
    """Replace a texture by its colour at the middle of each face, coarsened so that few colours remain."""
    if mesh.texture is None or mesh.uvs is None:
        return mesh
    uv = mesh.uvs.mean(axis=1) % 1.0
    h, w = mesh.texture.shape[:2]
    texels = mesh.texture[((1 - uv[:, 1]) * h).astype(int).clip(0, h - 1), (uv[:, 0] * w).astype(int).clip(0, w - 1)]
    return Mesh(vertices=mesh.vertices, faces=mesh.faces, colors=texels // 32 * 32 + 16)


def _piece(link: int, corners: np.ndarray, color: tuple[int, int, int]) -> Piece:
    """Share the corners that agree in place and normal: [f, 3, 6] corners to vertices and faces."""
    rows = corners.reshape(-1, 6)
    # 10 micrometres and about 1 degree: below what a screen shows.
    key = np.round(rows * ([1e5] * 3 + [64] * 3)).astype(np.int32)
    packed = np.ascontiguousarray(key).view(np.dtype((np.void, 24))).reshape(-1)
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return Piece(
        link=link,
        vertices=rows[first, :3].astype(np.float32),
        faces=inverse.reshape(-1, 3).astype(np.uint32),
        color=color,
    )
