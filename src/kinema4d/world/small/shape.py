"""Shape: everyday solids recognised in what is seen of a part.

Most things on tables are upright boxes or bodies of revolution (cans, balls, bottles, cups, bowls). Where such a solid
explains the pixels of a part, it takes the place of the network's completion: unseen sides follow from symmetry, to a
fraction of a millimetre instead of some, it rolls as round things do, and it is drawn with straight edges. What it would
show where the picture shows something behind it, or lacks where the picture shows the part, counts against it; parts that
no such solid explains keep their completed surface.

All coordinates are in a frame with z up and the support at 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int32

SIDES = 32
"""Corners of a round solid."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """An upright solid: a box, or a profile turned about a vertical axis."""

    centre: Float[np.ndarray, "2"]
    """Middle of the box, or where the axis stands, metres."""
    low: float
    """Height of its lowest point, metres."""
    high: float
    """And of its highest."""
    yaw: float = 0.0
    """Of a box, radians."""
    half: Float[np.ndarray, "2"] | None = None
    """Half sides of a box, metres."""
    profile: Float[np.ndarray, "k 2"] | None = None
    """Radius and height of a turned solid from the bottom up, metres."""
    wall: float | None = None
    """Thickness of the wall of a vessel that is open above, metres; None for what is full."""
    floor: float = 0.0
    """Height of the ground inside a vessel, metres."""
    ball: float | None = None
    """Radius where it is a ball, metres."""

    @property
    def kind(self) -> str:
        """In one word."""
        if self.half is not None:
            return "box"
        return "ball" if self.ball is not None else "vessel" if self.wall is not None else "turned"


def moved(shape: Shape, R: Float[np.ndarray, "3 3"], origin: Float[np.ndarray, "3"]) -> Shape:
    """The shape in another upright frame: turned about z by ``R``, then shifted."""
    turn, up = float(np.arctan2(R[1, 0], R[0, 0])), float(origin[2])
    profile = None if shape.profile is None else shape.profile + np.array([0.0, up])
    return replace(
        shape,
        centre=R[:2, :2] @ shape.centre + origin[:2],
        low=shape.low + up,
        high=shape.high + up,
        floor=shape.floor + up,
        yaw=shape.yaw + turn,
        profile=profile,
    )


def mesh_of(shape: Shape) -> tuple[Float[np.ndarray, "v 3"], Int32[np.ndarray, "f 3"]]:
    """Its closed surface, normals outward."""
    if shape.half is not None:
        corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (0, 1)], float)
        c, s = np.cos(shape.yaw), np.sin(shape.yaw)
        flat = (corners[:, :2] * shape.half) @ np.array([[c, s], [-s, c]]) + shape.centre
        vertices = np.column_stack([flat, np.where(corners[:, 2] > 0, shape.high, shape.low)])
        quads = np.array([[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]])
        return vertices, np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]).astype(np.int32)
    line = outline(shape)
    angle = 2 * np.pi * np.arange(SIDES) / SIDES
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    vertices = [np.array([[*shape.centre, line[0, 1]]])]
    vertices += [np.column_stack([shape.centre + r * ring, np.full(SIDES, z)]) for r, z in line[1:-1]]
    vertices.append(np.array([[*shape.centre, line[-1, 1]]]))
    here, after = np.arange(SIDES), (np.arange(SIDES) + 1) % SIDES
    first, last, rings = 1, 1 + SIDES * (len(line) - 2), len(line) - 2
    faces = [np.stack([np.zeros(SIDES, int), first + after, first + here], axis=1)]
    for k in range(rings - 1):
        a, b = first + k * SIDES, first + (k + 1) * SIDES
        faces += [np.stack([a + here, a + after, b + after], 1), np.stack([a + here, b + after, b + here], 1)]
    top = first + (rings - 1) * SIDES
    faces.append(np.stack([top + here, top + after, np.full(SIDES, last)], axis=1))
    return np.concatenate(vertices), np.concatenate(faces).astype(np.int32)


def outline(shape: Shape) -> Float[np.ndarray, "k 2"]:
    """Radius and height along the whole surface of a turned solid, from the axis below to the axis above."""
    if shape.ball is not None:
        a = np.linspace(-np.pi / 2, np.pi / 2, 17)
        return shape.ball * np.stack([np.cos(a), np.sin(a)], axis=1) + [0.0, (shape.low + shape.high) / 2]
    assert shape.profile is not None
    outer = shape.profile
    ends = [[0.0, outer[0, 1]]], [[0.0, outer[-1, 1] if shape.wall is None else shape.floor]]
    if shape.wall is None:
        return np.concatenate([ends[0], outer, ends[1]])
    inner = np.stack([np.maximum(outer[:, 0] - shape.wall, 0.001), outer[:, 1]], axis=1)
    ground = np.interp(shape.floor, inner[:, 1], inner[:, 0])
    inner = np.concatenate([[[ground, shape.floor]], inner[inner[:, 1] > shape.floor + 1e-4]])
    return np.concatenate([ends[0], outer, inner[::-1], ends[1]])


def scaled(shape: Shape, factor: float) -> Shape:
    """Larger or smaller by ``factor``, on the same spot."""
    about = np.array([0.0, shape.low])
    return replace(
        shape,
        high=shape.low + factor * (shape.high - shape.low),
        floor=shape.low + factor * (shape.floor - shape.low),
        half=None if shape.half is None else factor * shape.half,
        profile=None if shape.profile is None else (shape.profile - about) * factor + about,
        wall=None if shape.wall is None else factor * shape.wall,
        ball=None if shape.ball is None else factor * shape.ball,
    )
