"""How a moving object is shown, whether on film or in a page: colours, edges, arrows of forces, floor, and from where to look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int32, Int64, UInt8
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from kinema4d.geometry.deforming import ObjectMotion
from kinema4d.geometry.mesh import Mesh, corner_normals

PALETTE = np.array(
    [[86, 156, 214], [230, 159, 62], [84, 184, 150], [204, 121, 167], [150, 140, 210], [214, 196, 92]], np.uint8
)
"""One for each part that does not touch the others; red is left to the forces."""
RED = (214, 48, 40)
"""Of forces."""
STONE = (158, 162, 170)
"""Of obstacles."""
NEARBY = 0.6
"""Of the object's size: obstacles are looked at as far as that around where it goes."""
ARROW = 0.4
"""Length of the largest force, of the object's size."""
SOME = 4000
"""Vertices of all frames that are looked at to place a camera."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A square to see height and distance by."""

    middle: tuple[float, float, float]
    """In the world, metres."""
    half: float
    """Half its side, metres."""
    cell: float
    """Side of its squares, metres."""


def size(motion: ObjectMotion) -> float:
    """Diagonal of the object's box in the first frame, metres."""
    return max(float(np.linalg.norm(np.ptp(motion.vertices[0], axis=0))), 1e-6)


def face_colors(motion: ObjectMotion) -> UInt8[np.ndarray, "f 3"]:
    """A colour for every part that is connected."""
    f, n = motion.faces, motion.vertices.shape[1]
    rows, columns = f[:, [0, 1]].T.ravel(), f[:, [1, 2]].T.ravel()
    links = coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(n, n))
    part = connected_components(links, directed=False)[1][f[:, 0]]
    _, part = np.unique(part, return_inverse=True)  # vertices of no triangle take no colour
    return PALETTE[part % len(PALETTE)]


def creased(motion: ObjectMotion) -> tuple[Int64[np.ndarray, " n"], Int32[np.ndarray, "f 3"]]:
    """Vertices doubled where the rest shape has a sharp edge, as indices of the old ones, and faces of them: what averages normals at
    vertices, as browsers do, then shades edges sharply."""
    return creases(Mesh(vertices=motion.rest, faces=motion.faces.astype(np.int32), colors=face_colors(motion)))


def creases(mesh: Mesh) -> tuple[Int64[np.ndarray, " n"], Int32[np.ndarray, "f 3"]]:
    """The same of any mesh."""
    normal = np.round(corner_normals(mesh).reshape(-1, 3) * 32).astype(np.int64)
    rows, which = np.unique(np.column_stack([mesh.faces.reshape(-1), normal]), axis=0, return_inverse=True)
    return rows[:, 0].astype(np.int64), which.reshape(-1, 3).astype(np.int32)


def arrow(sides: int = 14) -> tuple[Float[np.ndarray, "v 3"], Int32[np.ndarray, "f 3"]]:
    """Of length 1 along z from the origin: shaft, then head."""
    angle = np.arange(sides) * 2 * np.pi / sides
    ring = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    up = np.array([0, 0, 1.0])
    rings = [0.028 * ring, 0.028 * ring + 0.74 * up, 0.075 * ring + 0.74 * up]
    vertices = np.concatenate([*rings, [[0, 0, 0], [0, 0, 1]]])
    i, j = np.arange(sides), (np.arange(sides) + 1) % sides
    faces = [np.stack([np.full(sides, 3 * sides), j, i], 1)]
    for a in (0, 1):
        low, high = a * sides, (a + 1) * sides
        faces += [np.stack([low + i, low + j, high + j], 1), np.stack([low + i, high + j, high + i], 1)]
    faces.append(np.stack([2 * sides + i, 2 * sides + j, np.full(sides, 3 * sides + 1)], 1))
    return vertices, np.concatenate(faces).astype(np.int32)


def arrows(motion: ObjectMotion, frame: int) -> Float[np.ndarray, "n 2 3"]:
    """Where the arrow of each push that acts begins and ends, in the world, metres: it begins where the push acts, or ends there if it
    goes into the object all in all, so that it is seen."""
    most = max(float(np.linalg.norm(motion.force, axis=2).max(initial=0.0)), 1e-30)
    acts = np.linalg.norm(motion.force[frame], axis=1) > 1e-9 * most
    few = motion.vertices[:, :: -(-motion.vertices.shape[1] // 64)]  # tell about where its middle is
    outwards = motion.force_at - few.mean(axis=1, keepdims=True)
    inwards = np.einsum("tmi,tmi->m", motion.force, outwards)[acts] < 0
    long = motion.force[frame][acts] * (ARROW * size(motion) / most)
    begin = motion.force_at[frame][acts] - inwards[:, None] * long
    return np.stack([begin, begin + long], axis=1)


def obstacle_mesh(motion: ObjectMotion) -> Mesh | None:
    """What stands in the way; None if nothing does."""
    if not len(motion.obstacle_faces):
        return None
    faces = motion.obstacle_faces.astype(np.int32)
    return Mesh(vertices=motion.obstacle.astype(np.float64), faces=faces, colors=np.tile(np.array(STONE, np.uint8), (len(faces), 1)))  # fmt: skip


def everything(motion: ObjectMotion) -> Float[np.ndarray, "n 3"]:
    """Points of all frames, some where there are many, the ends of all arrows, and obstacles as far as they are near: what a camera has to see."""
    x = went(motion)
    if not len(motion.obstacle):
        return x
    low, high = x.min(axis=0) - NEARBY * size(motion), x.max(axis=0) + NEARBY * size(motion)
    return np.concatenate([x, np.clip(_corners(motion), low, high)])


def _corners(motion: ObjectMotion) -> Float[np.ndarray, "8 3"]:
    """Of the box around all obstacles."""
    ends = np.stack([motion.obstacle.min(axis=0), motion.obstacle.max(axis=0)]).astype(np.float64)
    return np.stack(np.meshgrid(*ends.T, indexing="ij"), -1).reshape(8, 3)


def went(motion: ObjectMotion) -> Float[np.ndarray, "n 3"]:
    """Points of all frames, some where there are many, and the ends of all arrows."""
    t, v = motion.vertices.shape[:2]
    few = motion.vertices[:: -(-t // 40), :: -(-v * min(t, 40) // SOME)].reshape(-1, 3)
    ends = [arrows(motion, int(i)).reshape(-1, 3) for i in np.flatnonzero(motion.force.any(axis=(1, 2)))]
    frames = np.arange(t)
    sides = [pick(axis=1)[:, i] for pick in (motion.vertices.argmin, motion.vertices.argmax) for i in range(3)]
    outermost = [motion.vertices[frames, which] for which in sides]
    return np.concatenate([few, *outermost, *ends]).astype(np.float64)


def box(motion: ObjectMotion) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]:
    """Lowest and highest corner of where the object goes, and of what its coordinates do to it in the first frame, metres in the world."""
    x = [
        everything(motion),
        *(placed(motion, s, 0) for s in motion.sliders[:, [0, -1]].reshape(-1, *motion.rest.shape)),
    ]
    every = np.concatenate(x)
    return every.min(axis=0), every.max(axis=0)


def floor(motion: ObjectMotion) -> Floor:
    """At height 0 where all is above it, and otherwise below all."""
    x = everything(motion)
    low, high, big = x.min(axis=0), x.max(axis=0), size(motion)
    sunk = max(0.03 * big, 2 * float(motion.penetration.max()))
    height = 0.0 if -sunk <= low[2] <= 2 * big else float(low[2]) - 0.05 * big
    wide = float(np.ptp(x, axis=0).max())
    cell = 10.0 ** np.floor(np.log10(wide / 4))
    cell = float(cell * max(n for n in (1, 2, 5) if n * cell <= wide / 4 * (1 + 1e-9)))
    middle = np.round((low + high)[:2] / 2 / cell) * cell
    return Floor(
        middle=(float(middle[0]), float(middle[1]), height), half=float(np.ceil(1.1 * wide / cell) * cell), cell=cell
    )


def towards_eye(motion: ObjectMotion) -> Float[np.ndarray, "3"]:
    """Unit vector to where the motion is seen best: across it, a little from the side, and from higher the flatter it is."""
    x = motion.vertices.astype(np.float64)
    moves, spread = (x - x.mean(axis=0)).reshape(-1, 3), went(motion) - went(motion).mean(axis=0)
    weight = moves[:, :2].T @ moves[:, :2] / len(moves) + 0.25 * spread[:, :2].T @ spread[:, :2] / len(spread)
    across = np.linalg.eigh(weight)[1][:, 0]
    yaw = np.arctan2(*(across * (1 if across @ [0.3, -1.0] > 0 else -1))[::-1]) + np.radians(24)
    tall = float(np.ptp(spread[:, 2])) / max(float(np.ptp(spread[:, :2], axis=0).max()), 1e-9)
    pitch = np.radians(16 + 18 * (1 - min(1.0, tall)))
    return np.array([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)])


def placed(motion: ObjectMotion, own: Float32[np.ndarray, "v 3"], frame: int) -> Float32[np.ndarray, "v 3"]:
    """A shape of the object's frame where that is in the world in a frame."""
    return (own @ motion.turn[frame].T + motion.place[frame]).astype(np.float32)
