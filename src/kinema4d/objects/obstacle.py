"""What stands in the way: closed meshes that do not move, and how far points are from them.

Each connected part is a solid of its own, and what is inside any of them is inside; so a table of a top and legs that overlap is a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from kinema4d.objects.bounds import Distance
from kinema4d.objects.meshes import read_mesh, wound_both_ways
from kinema4d.objects.obstacle_kernels import signed, tree
from kinema4d.objects.solid import FLAT, Mesh, checked, parts

ON = 1e-9
"""Distance, of the coordinates' size, within which a point is on the surface."""
MEND = "close it (Blender: Mesh > Clean Up > Fill Holes, then Normals > Recalculate Outside), or give a closed box around it"
"""What to do with a mesh that is no solid."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Obstacle:
    """One thing that stands still in the world."""

    name: str
    """Of its file, for what is said about it."""
    mesh: Mesh
    """In the world; closed."""

    def __post_init__(self) -> None:
        refuse_open(self.mesh, self.name)


def read_obstacle(path: str | Path, *, unit: str = "m", up: str = "z") -> Obstacle:
    """Out of a file that :func:`read_mesh` reads; refused if it is no solid."""
    try:
        mesh = read_mesh(path, unit=unit, up=up)
    except ValueError as error:
        raise ValueError(f"the obstacle {path} cannot be used: {error}") from None
    return Obstacle(name=str(path), mesh=mesh)


def refuse_open(mesh: Mesh, name: str) -> None:
    """Only of a closed surface is it known what is inside."""
    name = f"the obstacle {name}"
    checked(mesh, name)
    edges = np.sort(mesh.faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    _, count = np.unique(edges, axis=0, return_counts=True)
    if (count == 1).any():
        raise ValueError(f"{name} is open: {int((count == 1).sum())} of its edges have one triangle, so it has no inside; {MEND}")  # fmt: skip
    if (count > 2).any():
        raise ValueError(f"{name} is not a manifold: {int((count > 2).sum())} of its edges have more than two triangles; {MEND}")  # fmt: skip
    if odd := wound_both_ways(mesh):
        raise ValueError(f"{name} has {odd} triangles that look the other way than their neighbours; {MEND}")
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    flat = int((np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2 < FLAT * mesh.size**2).sum())
    if flat:
        raise ValueError(f"{name} is degenerate: {flat} of {len(mesh.faces)} triangles have no area; remove them (Blender: Mesh > Clean Up > Degenerate Dissolve)")  # fmt: skip
    whose = parts(mesh)[mesh.faces[:, 0]]
    volume = np.bincount(whose, np.einsum("fi,fi->f", np.cross(a - a.mean(axis=0), b - a.mean(axis=0)), c - a.mean(axis=0)) / 6)  # fmt: skip
    if (volume < FLAT * mesh.size**3).any():
        raise ValueError(f"{name} is degenerate: a part of it has no volume; give it a thickness")


@dataclass(frozen=True, kw_only=True, eq=False)
class Skins:
    """Surfaces of parts, as the kernels take them: trees of boxes around triangles."""

    corners: Float64[np.ndarray, "f 3 3"]
    """Of triangles, in the order of the trees."""
    normals: Float64[np.ndarray, "f 7 3"]
    """Of their corners, edges and faces."""
    boxes: Float64[np.ndarray, "n 2 3"]
    """Of nodes."""
    nodes: Int64[np.ndarray, "n 3"]
    """First child (-1 for a leaf), and range of triangles."""
    roots: Int64[np.ndarray, " c"]
    """Of each part."""


def skins(vertices: Float64[np.ndarray, "v 3"], faces: Int64[np.ndarray, "f 3"], label: Int64[np.ndarray, " v"]) -> Skins:  # fmt: skip
    """Of every part ``label`` [v]."""
    whose = label[faces[:, 0]]
    corners, normals = vertices[faces], pseudo_normals(vertices, faces)
    order, boxes, nodes, roots = [], [], [], []
    count = first = 0
    for part in range(int(label.max()) + 1):
        mine = np.flatnonzero(whose == part)
        box, node, own = tree(corners[mine].min(axis=1), corners[mine].max(axis=1))
        roots.append(count)
        nodes.append(np.stack([np.where(node[:, 0] < 0, -1, node[:, 0] + count), node[:, 1] + first, node[:, 2] + first], 1))  # fmt: skip
        boxes.append(box)
        order.append(mine[own])
        count, first = count + len(node), first + len(own)
    every = np.concatenate(order)
    return Skins(
        corners=np.ascontiguousarray(corners[every]), normals=np.ascontiguousarray(normals[every]), boxes=np.concatenate(boxes),
        nodes=np.concatenate(nodes), roots=np.array(roots, np.int64),
    )  # fmt: skip


def around(mesh: Mesh, *, limit: float = float("inf")) -> Distance:
    """Signed distance to a closed mesh and its gradient: exact where it is less than ``limit``, and beyond never less than the limit, which is
    faster where most points are far."""
    label = parts(mesh)
    skin = skins(mesh.vertices, mesh.faces, label)
    held = (skin.corners, skin.normals, skin.boxes, skin.nodes, skin.roots)
    near = ON * float(np.abs(mesh.vertices).max())

    def distance(x: Tensor) -> tuple[Tensor, Tensor]:
        far, way = signed(np.ascontiguousarray(x.detach().numpy(), np.float64), *held, limit, near)
        return torch.from_numpy(far).to(x.dtype), torch.from_numpy(way).to(x.dtype)

    return distance


def pseudo_normals(vertices: Float64[np.ndarray, "v 3"], f: Int64[np.ndarray, "f 3"]) -> Float64[np.ndarray, "f 7 3"]:
    """Of each triangle's corners (weighted by angle, so that cutting a face in two changes nothing), of its edges, which begin at its corners, and
    its own: outside is where the nearest of them points."""
    corner = vertices[f]
    side = np.roll(corner, -1, axis=1) - corner  # [f,3,3] from each corner to the next
    own = np.cross(side[:, 0], side[:, 1])
    own /= np.linalg.norm(own, axis=1, keepdims=True).clip(min=1e-300)
    unit = side / np.linalg.norm(side, axis=2, keepdims=True).clip(min=1e-300)
    angle = np.arccos(np.clip(-(unit * np.roll(unit, 1, axis=1)).sum(axis=2), -1, 1))
    point = np.zeros_like(vertices)
    np.add.at(point, f, angle[..., None] * own[:, None])
    edge = np.sort(np.stack([f, np.roll(f, -1, axis=1)], -1).reshape(-1, 2), axis=1)
    _, which = np.unique(edge, axis=0, return_inverse=True)
    total = np.zeros((which.max() + 1, 3))
    np.add.at(total, which.ravel(), np.repeat(own, 3, axis=0))
    out = np.concatenate([point[f], total[which.ravel()].reshape(-1, 3, 3), own[:, None]], 1)
    return out / np.linalg.norm(out, axis=2, keepdims=True).clip(min=1e-300)


def least(distances: Sequence[Distance]) -> Distance | None:
    """To the nearest of several things; None for none."""
    if len(distances) <= 1:
        return distances[0] if distances else None

    def distance(x: Tensor) -> tuple[Tensor, Tensor]:
        far, way = (torch.stack(v) for v in zip(*(d(x) for d in distances), strict=True))
        which = far.argmin(0)
        return far.gather(0, which[None])[0], way.gather(0, which[None, :, None].expand(1, -1, 3))[0]

    return distance
