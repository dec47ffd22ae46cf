"""Procedural surfaces: boxes and bodies of revolution, closed, wound outwards, with texture coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.se3 import apply

Color = tuple[int, int, int]
"""RGB, 0..255."""

_SIDES = np.array([[1, 3, 7, 5], [2, 0, 4, 6], [3, 2, 6, 7], [0, 1, 5, 4], [4, 5, 7, 6], [2, 3, 1, 0]])
"""Corners of +x, -x, +y, -y, +z, -z, counter-clockwise from outside; bit k of a corner is the sign of axis k."""


def box(
    half: Sequence[float],
    color: Color,
    *,
    centre: Sequence[float] = (0, 0, 0),
    texture: UInt8[np.ndarray, "h w 3"] | None = None,
    texel: float = 0.1,
) -> Mesh:
    """A box of half sizes ``half``. A texture repeats every ``texel`` metres."""
    corners = np.array([[1 if n >> k & 1 else -1 for k in range(3)] for n in range(8)]) * half + centre
    vertices = corners[_SIDES].reshape(-1, 3)  # four of its own for each side, so that each has its own texture
    quads = np.arange(24).reshape(6, 4)
    faces = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]).astype(np.int32)
    uvs = None
    if texture is not None:
        axes = np.repeat([[1, 2], [1, 2], [0, 2], [0, 2], [0, 1], [0, 1]], 4, axis=0)
        uvs = (np.take_along_axis(vertices, axes, axis=1) / texel)[faces].astype(np.float32)
    return Mesh(vertices=vertices, faces=faces, colors=_plain(color, len(faces)), uvs=uvs, texture=texture)


def revolve(
    profile: Float[np.ndarray, "n 2"],
    color: Color,
    *,
    segments: int = 28,
    texture: UInt8[np.ndarray, "h w 3"] | None = None,
) -> Mesh:
    """Turn a profile of (radius, z) about z. Listed from the axis below to the axis above it winds outwards; its first
    and last radius must be 0, so that the surface is closed. A texture goes once around."""
    profile = np.asarray(profile, np.float64)
    if profile[0, 0] != 0 or profile[-1, 0] != 0:
        raise ValueError(f"the profile must start and end on the axis, got radii {profile[0, 0]} and {profile[-1, 0]}")
    angles = np.linspace(0, 2 * np.pi, segments, endpoint=False)
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    inner = profile[1:-1]
    middle = np.concatenate([np.column_stack([r * ring, np.full(segments, z)]) for r, z in inner])
    vertices = np.concatenate([[[0, 0, profile[0, 1]]], middle, [[0, 0, profile[-1, 1]]]])
    here = np.arange(segments)
    beside = (here + 1) % segments
    faces = [np.column_stack([np.zeros(segments, int), 1 + beside, 1 + here])]
    for n in range(len(inner) - 1):
        a, b = 1 + n * segments, 1 + (n + 1) * segments
        faces += [
            np.column_stack([a + here, a + beside, b + beside]),
            np.column_stack([a + here, b + beside, b + here]),
        ]
    last = 1 + (len(inner) - 1) * segments
    faces.append(np.column_stack([last + here, last + beside, np.full(segments, len(vertices) - 1)]))
    triangles = np.concatenate(faces).astype(np.int32)
    uvs = None
    if texture is not None:
        points = vertices[triangles]
        u = np.arctan2(points[..., 1], points[..., 0]) / (2 * np.pi)
        u -= np.rint(u - u[:, 1:2])  # a triangle over the seam stays in one piece; its second corner is off the axis
        axis = (triangles == 0) | (triangles == len(vertices) - 1)  # has no angle: between its two neighbours
        u = np.where(axis, np.where(axis, 0, u).sum(axis=1, keepdims=True) / 2, u)
        low, high = vertices[:, 2].min(), vertices[:, 2].max()
        uvs = np.stack([u, (points[..., 2] - low) / max(high - low, 1e-9)], axis=-1).astype(np.float32)
    return Mesh(vertices=vertices, faces=triangles, colors=_plain(color, len(triangles)), uvs=uvs, texture=texture)


def cylinder(radius: float, half: float, color: Color, **options: UInt8[np.ndarray, "h w 3"] | None) -> Mesh:
    """An upright cylinder around the origin."""
    return revolve(np.array([[0, -half], [radius, -half], [radius, half], [0, half]]), color, **options)  # pyright: ignore[reportArgumentType]


def ball(radius: float, color: Color, **options: UInt8[np.ndarray, "h w 3"] | None) -> Mesh:
    """A sphere around the origin."""
    t = np.linspace(-np.pi / 2, np.pi / 2, 15)
    profile = radius * np.stack([np.cos(t), np.sin(t)], axis=1)
    profile[[0, -1], 0] = 0
    return revolve(profile, color, **options)  # pyright: ignore[reportArgumentType]


def moved(mesh: Mesh, T: Float[np.ndarray, "4 4"]) -> Mesh:
    """The mesh elsewhere in its frame."""
    return Mesh(
        vertices=apply(T, mesh.vertices), faces=mesh.faces, colors=mesh.colors, uvs=mesh.uvs, texture=mesh.texture
    )


def joined(meshes: Sequence[Mesh]) -> tuple[Float[np.ndarray, "v 3"], np.ndarray]:
    """Vertices and faces of several meshes as one surface, without looks."""
    starts = np.cumsum([0] + [len(m.vertices) for m in meshes])
    faces = np.concatenate([m.faces + np.int32(s) for m, s in zip(meshes, starts[:-1], strict=True)])
    return np.concatenate([m.vertices for m in meshes]), faces.astype(np.int32)


def _plain(color: Color, count: int) -> UInt8[np.ndarray, "f 3"]:
    return np.tile(np.array(color, np.uint8), (count, 1))
