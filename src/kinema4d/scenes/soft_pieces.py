"""What soft objects are made of: grids of tetrahedra and triangles for MuJoCo's flex, chains of rods for ropes, solids that bodies carry."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import trimesh
from jaxtyping import Float64, Int64

from kinema4d.scenes.jointed import Part
from kinema4d.scenes.soft import Piece

SIDES = 6
"""Of a rope's tube."""


def world(body: str, *, step: float) -> str:
    """A MuJoCo model of these bodies: no contacts, steps of so many seconds."""
    # Euler is the only one that takes a flex without damping it; a whipping rope needs more care.
    way = "Euler" if "<flexcomp" in body else "implicit"
    return (
        f'<mujoco><compiler angle="radian"/><option timestep="{step}" integrator="{way}"><flag contact="disable"/></option>'
        f'<size memory="64M"/><worldbody>{body}</worldbody></mujoco>'
    )


def text(values: Any) -> str:
    """Numbers as MuJoCo reads them."""
    return " ".join(f"{v:.9g}" for v in np.asarray(values, np.float64).ravel())


def grid(counts: Sequence[int]) -> Float64[np.ndarray, "n 3"]:
    """Points of a box from -1 to 1, the last axis first to change."""
    axes = [np.linspace(-1, 1, n) if n > 1 else np.zeros(1) for n in counts]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def tetrahedra(counts: Sequence[int], points: Float64[np.ndarray, "n 3"]) -> Int64[np.ndarray, "e 4"]:
    """Six in every cell of a grid, each with a positive volume."""
    index = np.arange(len(points)).reshape(counts)
    out = []
    for order in itertools.permutations(range(3)):
        corner, ways = np.zeros(3, int), [np.zeros(3, int)]
        for axis in order:
            corner = corner + np.eye(3, dtype=int)[axis]
            ways.append(corner)
        views = [index[tuple(slice(w, n - 1 + w) for w, n in zip(way, counts, strict=True))].ravel() for way in ways]
        out.append(np.stack(views, axis=1))
    cells = np.concatenate(out)
    a, b, c, d = (points[cells[:, i]] for i in range(4))
    volume = np.einsum("ei,ei->e", np.cross(b - a, c - a), d - a)
    cells[volume < 0] = cells[volume < 0][:, [0, 2, 1, 3]]
    return cells.astype(np.int64)


def surface(cells: Int64[np.ndarray, "e 4"]) -> tuple[Int64[np.ndarray, " v"], Int64[np.ndarray, "f 3"]]:
    """Nodes on the outside of tetrahedra, and the triangles between them."""
    faces = cells[:, [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]].reshape(-1, 3)
    _, where, count = np.unique(np.sort(faces, axis=1), axis=0, return_index=True, return_counts=True)
    outer = faces[where[count == 1]]
    nodes, back = np.unique(outer, return_inverse=True)
    return nodes.astype(np.int64), back.reshape(-1, 3).astype(np.int64)


def sheet(rows: int, columns: int) -> Int64[np.ndarray, "f 3"]:
    """Two triangles in every cell of a grid, the slanted side in turns."""
    at = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = (x.ravel() for x in (at[:-1, :-1], at[1:, :-1], at[1:, 1:], at[:-1, 1:]))
    odd = (np.add.outer(np.arange(rows - 1), np.arange(columns - 1)) % 2 == 1).ravel()
    one = np.where(odd[:, None], np.stack([a, b, d], 1), np.stack([a, b, c], 1))
    two = np.where(odd[:, None], np.stack([b, c, d], 1), np.stack([a, c, d], 1))
    return np.concatenate([one, two]).astype(np.int64)


def flex(
    points: np.ndarray, cells: np.ndarray, pins: np.ndarray, *, mass: float, young: float, poisson: float, damping: float, thickness: float = 0.0
) -> str:  # fmt: skip
    """A flex of triangles or tetrahedra, with these nodes held by the body that it is in."""
    dim = cells.shape[1] - 1
    thin = f' thickness="{thickness:.9g}" elastic2d="both"' if dim == 2 else ""
    return (
        f'<flexcomp name="soft" type="direct" dim="{dim}" radius="0.001" mass="{mass:.9g}" point="{text(points)}" '
        f'element="{" ".join(map(str, cells.ravel()))}">'
        f'<elasticity young="{young:.9g}" poisson="{poisson:.9g}" damping="{damping:.9g}"{thin}/>'
        f'<contact selfcollide="none"/><pin id="{" ".join(map(str, pins))}"/></flexcomp>'
    )


def rope(count: int, long: float, thick: float, *, at: Any, density: float, stiffness: float, damping: float) -> str:
    """``count`` rods one below the other, each ``long`` metres, on ball joints with weak springs."""
    # A little inertia of each joint keeps light rods calm when they whip.
    weight = density * np.pi * thick**2 * long
    joint = f'<joint type="ball" stiffness="{stiffness:.9g}" damping="{damping:.9g}" armature="{0.05 * weight * long**2:.9g}"/>'
    inner = ""
    for i in reversed(range(count)):
        place = text(at) if i == 0 else text((0, 0, -long))
        rod = f'<geom type="capsule" fromto="0 0 0 0 0 {-long:.9g}" size="{thick:.9g}" density="{density:.9g}"/>'
        inner = f'<body name="rope{i}" pos="{place}">{joint}{rod}{inner}</body>'
    return inner


def tube(count: int, long: float, thick: float) -> Piece:
    """The mesh of a :func:`rope`: a ring at each joint, halfway between its neighbours, and a tip at each end."""
    turn = 2 * np.pi * np.arange(SIDES) / SIDES
    ring = np.stack([thick * np.cos(turn), thick * np.sin(turn), np.zeros(SIDES)], axis=1)
    low = np.array([0.0, 0.0, -long])
    local, bodies = [], []
    for i in range(count + 1):
        above, below = max(i - 1, 0), min(i, count - 1)
        pair = np.stack([ring + low * (i > 0), ring + low * (i == count)], axis=1)
        local.append(pair)
        bodies += [(f"rope{above}", f"rope{below}")] * SIDES
    local.append(np.array([[[0, 0, thick]] * 2, [low - [0, 0, thick]] * 2]))
    bodies += [("rope0", "rope0"), (f"rope{count - 1}", f"rope{count - 1}")]
    k, n = np.arange(SIDES), (np.arange(SIDES) + 1) % SIDES
    faces = []
    for i in range(count):
        a, b, c, d = i * SIDES + k, i * SIDES + n, (i + 1) * SIDES + n, (i + 1) * SIDES + k
        faces += [np.stack([a, d, c], 1), np.stack([a, c, b], 1)]
    top, bottom, last = (count + 1) * SIDES, (count + 1) * SIDES + 1, count * SIDES
    faces += [np.stack([np.full(SIDES, top), k, n], 1), np.stack([np.full(SIDES, bottom), last + n, last + k], 1)]
    return Piece(faces=np.concatenate(faces).astype(np.int64), bodies=tuple(bodies), local=np.concatenate(local))


def solids(part: Part, *, density: float) -> str:
    """Geoms of a part."""
    return "".join(
        f'<geom type="{"box" if kind == "box" else "cylinder"}" size="{text(size if kind == "box" else size[:2])}" '
        f'pos="{text(middle)}" density="{density:.9g}"/>'
        for kind, size, middle in part.solids
    )


def carried(body: str, shapes: Sequence[trimesh.Trimesh]) -> Piece:
    """Meshes that a body carries, in its frame."""
    starts = np.cumsum([0, *(len(s.vertices) for s in shapes[:-1])])
    vertices = np.concatenate([np.asarray(s.vertices, np.float64) for s in shapes])
    faces = np.concatenate([np.asarray(s.faces, np.int64) + n for s, n in zip(shapes, starts, strict=True)])
    return Piece(faces=faces, bodies=((body, body),) * len(vertices), local=np.stack([vertices, vertices], axis=1))


def shapes(part: Part) -> list[trimesh.Trimesh]:
    """The solids of a part as meshes in its frame."""
    out = []
    for kind, size, middle in part.solids:
        shape = trimesh.creation.box([2 * s for s in size]) if kind == "box" else trimesh.creation.cylinder(size[0], 2 * size[1], sections=10)  # fmt: skip
        shape.apply_translation(middle)
        out.append(shape)
    return out
