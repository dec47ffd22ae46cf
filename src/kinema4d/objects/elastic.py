"""Elastic energy of a mesh whose vertices are given: closed parts as solids, open ones as sheets (NeuROK, section 5).

The law is St. Venant's and Kirchhoff's everywhere, as in MuJoCo's flexes (measured: its forces are this law's on its own
tetrahedra to ten digits): energy is quadratic in Green's strain, so that turning costs nothing however far. What a surface does inside
is a fixed mean of its vertices, a spline that is least bent (polyharmonic, r^3), which takes what is linear as it is.

A solid's strain is that of tetrahedra between the mesh's own vertices and nodes inside as far apart. Where the mesh is
coarse they are stiffer than the material, as those of any simulator that takes the mesh as it is; "smooth" takes the
strain of the spline instead, which a beam's theory confirms and which is softer than such simulators. A sheet's strain
is that of the mesh's triangles. Everything is a formula of the vertices in torch, and can be differentiated twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import csr_matrix, vstack
from scipy.spatial import Delaunay
from torch import Tensor

from kinema4d.objects.peers import INSIDE, _lame, _winding
from kinema4d.objects.solid import SHELL, Mesh, Weighed, _few, parts

Elements = Literal["mesh", "smooth"]
"""What a solid's strain is taken of: tetrahedra as coarse as the mesh, or the spline."""
THICK = 0.002
"""Metres of a sheet of which nothing else is known, as it is weighed."""
NODES = 600
"""Vertices of a part at most that its inside follows."""
GRID, WORK = 24, 3 * 10**7
"""Places along each side of a part's box that are looked at for what is inside, and of those times triangles at most."""
CELLS, POINTS = 10, 600
"""Along the largest side of a part at most: in each, points have the moments of what is inside up to squares; and so many points at most."""
SLIVER = 0.02
"""Volume of a tetrahedron, of the cubed length of its longest edge, below which it is none; a regular one has 0.118."""
SMOOTH = 1e-8
"""Weight of smoothness in the spline, which keeps vertices at the same place apart."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """What it is made of."""

    young: float
    """Young's modulus, Pa."""
    poisson: float = 0.3
    """Poisson's ratio."""
    thickness: float = THICK
    """Of what is open, metres."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.young) and self.young > 0):
            raise ValueError(f"young (Young's modulus, Pa) must be positive, got {self.young}")
        if not -1 < self.poisson < 0.5:
            raise ValueError(f"poisson (Poisson's ratio) must be above -1 and below 0.5, got {self.poisson}")
        if not (np.isfinite(self.thickness) and self.thickness > 0):
            raise ValueError(f"thickness (of sheets, metres) must be positive, got {self.thickness}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Elastic:
    """A mesh as something elastic."""

    energy: Callable[[Tensor], Tensor]
    """Vertices [b,v,3] to joule [b]."""
    weighed: Weighed
    """Points with masses that bend with it, of the same density everywhere."""


def elastic(
    mesh: Mesh,
    material: Material,
    *,
    density: float = 1000.0,
    stiff: Bool[np.ndarray, " v"] | None = None,
    elements: Elements = "mesh",
) -> Elastic:
    """Every connected part by itself: one that is closed is a solid, one that is open a sheet. Parts whose vertices are all ``stiff`` keep their form
    anyway, so that only their mass counts."""
    terms, rows, masses = [], [], []
    for faces in _surfaces(mesh):
        bends = stiff is None or not stiff[faces].all()
        if closed(mesh, faces):
            found, at, mass = _solid(mesh, faces, material, elements if bends else None)
        else:
            found, at, mass = _sheet(mesh, faces, material)
        terms += [found] if bends and found is not None else []
        rows.append(at)
        masses.append(density * mass)
    return Elastic(
        energy=lambda x: torch.stack([term(x) for term in terms]).sum(0) if terms else torch.zeros(len(x), dtype=x.dtype),
        weighed=Weighed(rows=csr_matrix(vstack(rows)), mass=np.concatenate(masses)),
    )  # fmt: skip


def _surfaces(mesh: Mesh) -> list[Int64[np.ndarray, "f 3"]]:
    """Triangles of each connected part."""
    label = parts(mesh)[mesh.faces[:, 0]]
    return [mesh.faces[label == part] for part in np.unique(label)]


def closed(mesh: Mesh, faces: Int64[np.ndarray, "f 3"]) -> bool:
    """Whether triangles enclose a volume."""
    edges = np.sort(faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    size = float(np.linalg.norm(np.ptp(mesh.vertices[np.unique(faces)], axis=0)))
    return bool((np.unique(edges, axis=0, return_counts=True)[1] == 2).all()) and volume(mesh, faces) > SHELL * size**3


def volume(mesh: Mesh, faces: Int64[np.ndarray, "f 3"]) -> float:
    """Cubic metres inside of triangles."""
    a, b, c = (mesh.vertices[faces[:, i]] - mesh.vertices[faces[0, 0]] for i in range(3))
    return float(np.einsum("fi,fi->", np.cross(a, b), c) / 6)


def area(mesh: Mesh, faces: Int64[np.ndarray, "f 3"]) -> Float64[np.ndarray, " f"]:
    """Square metres of triangles."""
    a, b, c = (mesh.vertices[faces[:, i]] for i in range(3))
    return np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2


def density_of(mesh: Mesh, weighed: Weighed) -> float:
    """Kilograms per cubic metre of what was weighed with sheets of ``THICK`` metres."""
    each = [volume(mesh, f) if closed(mesh, f) else THICK * float(area(mesh, f).sum()) for f in _surfaces(mesh)]
    return float(weighed.mass.sum()) / sum(each)


# ---------------------------------------------------------------------- solids


def _solid(whole: Mesh, faces: np.ndarray, material: Material, elements: Elements | None) -> tuple[Callable[[Tensor], Tensor] | None, csr_matrix, np.ndarray]:  # fmt: skip
    """Energy of a closed part, and points inside with volumes, as means of vertices."""
    own = np.unique(faces)
    mesh = Mesh(vertices=whole.vertices[own], faces=np.searchsorted(own, faces))
    keep = _apart(mesh.vertices, NODES)
    nodes, used = mesh.vertices[keep], own[keep]
    inner, weight = _inside(mesh)
    value, slopes = _spline(nodes, inner)
    index = (np.repeat(np.arange(len(inner)), len(used)), np.tile(used, len(inner)))
    points = csr_matrix((value.ravel(), index), shape=(len(inner), len(whole.vertices)))
    if elements is None:
        return None, points, weight
    at = torch.from_numpy(used)
    if elements == "smooth":
        return _stretched(at, slopes, weight, material), points, weight
    more, cells = _tetrahedra(mesh, nodes)
    return _cells(at, nodes, _spline(nodes, more)[0], cells, volume(mesh, mesh.faces), material), points, weight


def _stretched(at: Tensor, slopes: np.ndarray, weight: np.ndarray, material: Material) -> Callable[[Tensor], Tensor]:
    """Energy at places whose deformation is slopes [m,n,3] of the vertices ``at``."""
    mu, lam = _lame(material.young, material.poisson)
    ways, w = torch.from_numpy(np.ascontiguousarray(slopes.transpose(1, 0, 2).reshape(len(at), -1))), torch.from_numpy(weight)  # fmt: skip

    def energy(x: Tensor) -> Tensor:
        f = (x[:, at].mT @ ways.to(x.dtype)).unflatten(2, (-1, 3)).movedim(2, 1)
        return (w.to(x.dtype) * _kirchhoff(f.mT @ f, mu, lam)).sum(1)

    return energy


def _cells(at: Tensor, nodes: np.ndarray, filled: np.ndarray, cells: np.ndarray, total: float, material: Material) -> Callable[[Tensor], Tensor]:  # fmt: skip
    """Energy of tetrahedra between vertices ``at`` and nodes that are means ``filled`` [n,v] of them."""
    mu, lam = _lame(material.young, material.poisson)
    rest = np.concatenate([nodes, filled @ nodes])[cells]
    edges = (rest[:, 1:] - rest[:, :1]).swapaxes(1, 2)
    size = np.linalg.det(edges) / 6
    mean, which = torch.from_numpy(filled), torch.from_numpy(cells)
    back, w = torch.from_numpy(np.linalg.inv(edges)), torch.from_numpy(size * total / size.sum())

    def energy(x: Tensor) -> Tensor:
        own = x[:, at]
        corner = torch.cat([own, mean.to(x.dtype) @ own], 1)[:, which]
        f = (corner[:, :, 1:] - corner[:, :, :1]).mT @ back.to(x.dtype)
        return (w.to(x.dtype) * _kirchhoff(f.mT @ f, mu, lam)).sum(1)

    return energy


def _kirchhoff(metric: Tensor, mu: float, lam: float) -> Tensor:
    """St. Venant's and Kirchhoff's energy density, joule per volume, of F'F [...,d,d]."""
    strain = (metric - torch.eye(metric.shape[-1], dtype=metric.dtype)) / 2
    return mu * strain.square().sum((-2, -1)) + lam / 2 * strain.diagonal(dim1=-2, dim2=-1).sum(-1).square()


def _tetrahedra(mesh: Mesh, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes inside, as far apart as those of the surface, and tetrahedra between both."""
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    edge = np.median(np.concatenate([np.linalg.norm(b - a, axis=1), np.linalg.norm(c - b, axis=1), np.linalg.norm(a - c, axis=1)]))  # fmt: skip
    apart = max(0.85 * float(edge), (volume(mesh, mesh.faces) / NODES) ** (1 / 3))  # half of the edges are diagonals
    low, high = nodes.min(axis=0), nodes.max(axis=0)
    steps = [np.arange(max(1, round((h - lo) / apart))) for lo, h in zip(low, high, strict=True)]
    lattice = np.stack(np.meshgrid(*steps, indexing="ij"), -1).reshape(-1, 3)
    lattice = low + (lattice + 0.5) / [len(s) for s in steps] * (high - low)
    far = np.linalg.norm(lattice[:, None] - nodes, axis=2).min(axis=1) > 0.6 * apart
    more = lattice[far][_winding(mesh, lattice[far]) > INSIDE]
    every = np.concatenate([nodes, more])
    cells = Delaunay(every).simplices
    x = every[cells]
    size = np.linalg.det(x[:, 1:] - x[:, :1]) / 6
    longest = np.linalg.norm(x[:, :, None] - x[:, None], axis=3).max(axis=(1, 2))
    cells = np.where((size < 0)[:, None], cells[:, [0, 2, 1, 3]], cells)
    good = np.abs(size) > SLIVER * longest**3
    good[good] = _winding(mesh, x[good].mean(axis=1)) > INSIDE
    if not good.any():
        raise ValueError(f"a closed part of {len(mesh.vertices)} vertices has no tetrahedra inside: is it flat?")
    return more, cells[good].astype(np.int64)


def _inside(mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """Few places in a solid, and volumes: cell by cell with the moments of what is inside up to squares."""
    low, wide = mesh.vertices.min(axis=0), np.ptp(mesh.vertices, axis=0)
    count = int(np.clip((WORK / len(mesh.faces)) ** (1 / 3), 8, GRID))
    steps = (np.arange(count) + 0.5) / count
    x = low + np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 3) * wide
    x = x[_winding(mesh, x) > INSIDE]
    if not len(x):
        raise ValueError(f"a closed part of {len(mesh.vertices)} vertices has nothing inside: is it flat?")
    cut = lambda cells: np.floor((x - low) / wide.max() * cells * (1 - 1e-9)).astype(int)  # noqa: E731
    cell = next(c for n in range(CELLS, 0, -1) if 10 * len(np.unique(c := cut(n), axis=0)) <= POINTS or n == 1)
    places, weights = [], []
    for key in np.unique(cell, axis=0):
        mine = x[(cell == key).all(axis=1)]
        keep, w = _few(mine, np.ones(len(mine))) if len(mine) > 10 else (np.arange(len(mine)), np.ones(len(mine)))
        places.append(mine[keep])
        weights.append(w)
    weight = np.concatenate(weights)
    return np.concatenate(places), weight * volume(mesh, mesh.faces) / weight.sum()


def _spline(nodes: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values [m,n] at places of the function that has given values at nodes and is least bent, and its slopes [m,n,3]."""
    middle, size = nodes.mean(axis=0), float(np.linalg.norm(np.ptp(nodes, axis=0)))
    u, y, n = (nodes - middle) / size, (x - middle) / size, len(nodes)
    affine = np.concatenate([np.ones((n, 1)), u], axis=1)
    bent = np.linalg.norm(u[:, None] - u, axis=2) ** 3 + SMOOTH * np.eye(n)
    full = np.block([[bent, affine], [affine.T, np.zeros((4, 4))]])
    share = np.linalg.solve(full, np.eye(n + 4, n))
    away = y[:, None] - u
    far = np.linalg.norm(away, axis=2)
    value = far**3 @ share[:n] + share[n] + y @ share[n + 1 :]
    slopes = np.einsum("mai,an->mni", 3 * far[..., None] * away, share[:n], optimize=True) + share[n + 1 :].T
    return value, slopes / size


def _apart(x: np.ndarray, most: int) -> np.ndarray:
    """Which of places to keep so that they are far from one another."""
    if len(x) <= most:
        return np.arange(len(x))
    out, near = [0], np.linalg.norm(x - x[0], axis=1)
    while len(out) < most:
        out.append(int(near.argmax()))
        near = np.minimum(near, np.linalg.norm(x - x[out[-1]], axis=1))
    return np.sort(out)


# ---------------------------------------------------------------------- sheets


def _sheet(
    mesh: Mesh, faces: np.ndarray, material: Material
) -> tuple[Callable[[Tensor], Tensor], csr_matrix, np.ndarray]:
    """Energy of an open part, and the middles of its edges with volumes. A membrane in plane stress, and a plate whose mean curvature is gathered at
    vertices from the edges around them (edge by edge, a grid bent along its sides would be three times too stiff)."""
    young, poisson, thick = material.young, material.poisson, material.thickness
    faces = faces[area(mesh, faces) > 0]
    x, size = mesh.vertices, area(mesh, faces)
    edges = (x[faces[:, 1:]] - x[faces[:, :1]]).swapaxes(1, 2)
    back = torch.from_numpy(np.linalg.inv(np.linalg.qr(edges)[1]))
    which, w = torch.from_numpy(faces), torch.from_numpy(thick * size)
    mu, lam = young / (2 + 2 * poisson), young * poisson / (1 - poisson**2)  # plane stress
    fold = _hinges(faces)
    known, near = np.unique(faces, return_inverse=True)
    own = torch.from_numpy(np.bincount(near.ravel(), np.repeat(size / 3, 3)))  # of each vertex, square metres
    ends = torch.from_numpy(np.searchsorted(known, fold[:, :2]).T.copy())
    half = torch.from_numpy(np.linalg.norm(x[fold[:, 0]] - x[fold[:, 1]], axis=1) / 2)
    hinge = torch.from_numpy(fold)
    rest = _angles(torch.from_numpy(x)[None], hinge)[0]
    plate = young * thick**3 / (12 * (1 - poisson**2))

    def energy(y: Tensor) -> Tensor:
        corner = y[:, which]
        f = (corner[:, :, 1:] - corner[:, :, :1]).mT @ back.to(y.dtype)
        out = (w.to(y.dtype) * _kirchhoff(f.mT @ f, mu, lam)).sum(1)
        turn = _angles(y, hinge) - rest.to(y.dtype)
        share = half.to(y.dtype) * torch.atan2(turn.sin(), turn.cos())  # of an edge's curvature for each of its ends
        curved = torch.zeros(len(y), len(known), dtype=y.dtype).index_add(1, ends[0], share).index_add(1, ends[1], share)  # fmt: skip
        return out + plate / 2 * (curved.square() / own.to(y.dtype)).sum(1)

    sides = np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    pairs, index = np.unique(sides, axis=0, return_inverse=True)
    weight = np.bincount(index.ravel(), np.repeat(thick * size / 3, 3))
    rows = csr_matrix((np.full(2 * len(pairs), 0.5), (np.repeat(np.arange(len(pairs)), 2), pairs.ravel())), shape=(len(pairs), len(x)))  # fmt: skip
    return energy, rows, weight


def _hinges(faces: np.ndarray) -> np.ndarray:
    """[h,4] edges between two triangles: their ends, and the corners across."""
    sides: dict[tuple[int, int], list[int]] = {}
    for a, b, c in np.concatenate([faces, np.roll(faces, -1, 1), np.roll(faces, -2, 1)]).tolist():
        sides.setdefault((min(a, b), max(a, b)), []).append(c)
    return np.array([[*edge, *across] for edge, across in sides.items() if len(across) == 2], np.int64).reshape(-1, 4)


def _angles(x: Tensor, fold: Tensor) -> Tensor:
    """[b,h] between the triangles on both sides of edges, zero where they are flat (radians)."""
    a, b, c, d = x[:, fold].unbind(2)
    edge = b - a
    one, other = torch.linalg.cross(edge, c - a), torch.linalg.cross(d - a, edge)
    sine = (torch.linalg.cross(one, other) * edge).sum(-1) / edge.norm(dim=-1)
    return torch.atan2(sine, (one * other).sum(-1))
