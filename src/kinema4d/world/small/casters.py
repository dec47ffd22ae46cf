"""What throws shadows: the robot by its own meshes, and parts by their completed surfaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int32

from kinema4d.geometry.mesh import Mesh, cluster
from kinema4d.types import Solid
from kinema4d.world.small.parts import Part

COARSE = 0.012
"""Cells in which meshes are simplified before they throw shadows, metres: as wide as the shadow's soft edge."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Casters:
    """What throws shadows: the robot and the parts."""

    vertices: Float[np.ndarray, "t v 3"]
    """World, metres, at every frame."""
    faces: Int32[np.ndarray, "f 3"]
    """Triangles."""


def casters(solids: Sequence[Solid], parts: Sequence[Part], motions: Float[np.ndarray, "p t 4 4"]) -> Casters | None:
    """Of a robot's solids and of parts as they move; None without a robot, whose shadow would be taken for others'."""
    if not solids:
        return None
    pieces = [(*shape_of(s), s.Ts_world_link) for s in solids]
    pieces += [(p.vertices, p.faces, Ts) for p, Ts in zip(parts, motions, strict=True) if len(p.faces)]
    starts = np.cumsum([0] + [len(v) for v, *_ in pieces])
    return Casters(
        vertices=np.concatenate(
            [v @ np.swapaxes(T[:, :3, :3], 1, 2) + T[:, None, :3, 3] for v, _, T in pieces], axis=1
        ),
        faces=np.concatenate([f + np.int32(n) for (_, f, _), n in zip(pieces, starts[:-1], strict=True)]),
    )


@lru_cache(maxsize=256)
def coarse(mesh: Mesh) -> Mesh:
    """A mesh as it throws shadows. Meshes are told apart by identity, so a robot's are simplified once."""
    return cluster(mesh, COARSE)


def shape_of(solid: Solid) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and faces by which a solid throws shadows: its meshes where it has some, else its hull, which is wider."""
    if not solid.meshes:
        return solid.vertices, solid.faces
    meshes = [coarse(m) for m in solid.meshes]
    starts = np.cumsum([0] + [len(m.vertices) for m in meshes])
    faces = [m.faces + np.int32(n) for m, n in zip(meshes, starts[:-1], strict=True)]
    return np.concatenate([m.vertices for m in meshes]), np.concatenate(faces)
