"""Elastic energy of a mesh whose vertices are given: closed parts as solids, open ones as sheets (NeuROK, section 5).

A closed tube of rings that is straight and slender is a rod, as a rope is: it is stretched, bent and twisted about the line of its rings' middles, because
tetrahedra that span it from ring to ring cannot bend. Everything else is a solid or a sheet.

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
from kinema4d.objects.rings import rings
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
DENSE = 3 * 10**5
"""Numbers of a matrix below which it is faster as it is than with its zeros left out, and so it is where more than ``FULL`` of them are none."""
FULL = 0.2
STRAIGHT = 0.3
"""Radians by which the line of a rod turns at most, all in all."""
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
    damping: float = 0.0
    """Stress of a rate of strain, of that of the strain, seconds (Kelvin's and Voigt's, Rayleigh's by stiffness): ``damping`` of MuJoCo's flexes."""
    even: bool = False
    """Whether vertices (and nodes inside) all weigh the same, as in MuJoCo's flexes, and not what is around them."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.young) and self.young > 0):
            raise ValueError(f"young (Young's modulus, Pa) must be positive, got {self.young}")
        if not -1 < self.poisson < 0.5:
            raise ValueError(f"poisson (Poisson's ratio) must be above -1 and below 0.5, got {self.poisson}")
        if not (np.isfinite(self.thickness) and self.thickness > 0):
            raise ValueError(f"thickness (of sheets, metres) must be positive, got {self.thickness}")
        if not (np.isfinite(self.damping) and self.damping >= 0):
            raise ValueError(f"damping (of strain, seconds) must not be negative, got {self.damping}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Inside:
    """Tetrahedra of a solid, where they are known."""

    nodes: Float64[np.ndarray, "m 3"]
    """Nodes beside the mesh's vertices, metres."""
    cells: Int64[np.ndarray, "c 4"]
    """Corners, of the vertices of the part that bends and then nodes; with a positive volume."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Elastic:
    """A mesh as something elastic."""

    energy: Callable[[Tensor], Tensor]
    """Vertices [b,v,3] to joule [b]."""
    force: Callable[[Tensor, Tensor], Tensor]
    """Vertices and their speeds [b,v,3] to the slope of the energy and what damping adds to it [b,v,3], newton."""
    weighed: Weighed
    """Points with masses that bend with it, of the same density everywhere."""


def elastic(
    mesh: Mesh,
    material: Material,
    *,
    density: float = 1000.0,
    stiff: Bool[np.ndarray, " v"] | None = None,
    elements: Elements = "mesh",
    inside: Inside | None = None,
    rods: bool = True,
) -> Elastic:
    """Every connected part by itself: one that is closed is a solid, one that is open a sheet. Parts whose vertices are all ``stiff`` keep their form
    anyway, so that only their mass counts. Tetrahedra are made up unless they are known (``inside``, of the one part that bends). Without ``rods`` a
    slender tube is a solid, too, whose sections resist."""
    limp = [faces for faces in _surfaces(mesh) if stiff is None or not stiff[faces].all()]
    if inside is not None and (len(limp) != 1 or not closed(mesh, limp[0])):
        raise ValueError(f"tetrahedra are given of one solid that bends, and {len(limp)} parts of this mesh bend" if len(limp) != 1 else "tetrahedra are given of a part that is open")  # fmt: skip
    terms, rows, masses = [], [], []
    for faces in _surfaces(mesh):
        bends = stiff is None or not stiff[faces].all()
        if not closed(mesh, faces):
            found, at, mass = _sheet(mesh, faces, material)
        elif bends and rods and (ring := _tube(mesh, faces)) is not None:
            found, at, mass = _rod(mesh, np.unique(faces), ring, volume(mesh, faces), material)
        else:
            found, at, mass = _solid(mesh, faces, material, elements if bends else None, inside if bends else None)
        terms += [found] if bends and found is not None else []
        rows.append(at)
        masses.append(density * mass)

    def force(x: Tensor, speed: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for term in terms:
            out = out + term.force(x, speed)
        return out

    return Elastic(
        energy=lambda x: torch.stack([term.energy(x) for term in terms]).sum(0) if terms else torch.zeros(len(x), dtype=x.dtype),
        force=force, weighed=Weighed(rows=csr_matrix(vstack(rows)), mass=np.concatenate(masses)),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Term:
    energy: Callable[[Tensor], Tensor]
    force: Callable[[Tensor, Tensor], Tensor]


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


def _solid(whole: Mesh, faces: np.ndarray, material: Material, elements: Elements | None, inside: Inside | None) -> tuple[_Term | None, csr_matrix, np.ndarray]:  # fmt: skip
    """Energy of a closed part, and points inside with volumes, as means of vertices."""
    own = np.unique(faces)
    mesh = Mesh(vertices=whole.vertices[own], faces=np.searchsorted(own, faces))
    keep = scattered(mesh.vertices, NODES)
    nodes, used = mesh.vertices[keep], own[keep]
    inner, weight = _inside(mesh)
    value, slopes = spline(nodes, inner)
    index = (np.repeat(np.arange(len(inner)), len(used)), np.tile(used, len(inner)))
    points = csr_matrix((value.ravel(), index), shape=(len(inner), len(whole.vertices)))
    if elements is None:
        return None, points, weight
    at = torch.from_numpy(used)
    if elements == "smooth":
        energy = _stretched(at, slopes, weight, material)
        flat = csr_matrix(slopes.transpose(0, 2, 1).reshape(-1, len(used)))
        return _Term(energy, _strained(flat, used, weight, material)), points, weight
    if inside is not None and len(keep) < len(own):
        raise ValueError(f"tetrahedra are given of at most {NODES} vertices, this part has {len(own)}")
    more, cells = _tetrahedra(mesh, nodes) if inside is None else (inside.nodes, inside.cells)
    filled, total = spline(nodes, more)[0], volume(mesh, mesh.faces)
    if material.even and len(keep) == len(own):
        every = np.concatenate([np.eye(len(used)), filled])
        points = csr_matrix((every.ravel(), (np.repeat(np.arange(len(every)), len(used)), np.tile(used, len(every)))), shape=(len(every), len(whole.vertices)))  # fmt: skip
        weight = np.full(len(every), total / len(every))
    energy, ways, size = _cells(at, nodes, filled, cells, total, material)
    return _Term(energy, _strained(ways, used, size, material, filled=filled)), points, weight


def _columns(cells: np.ndarray, back: np.ndarray, count: int) -> csr_matrix:
    """[m*d,count] columns of the deformation of elements with corners ``cells`` [m,d+1] and inverse edges ``back`` [m,d,d]."""
    d = cells.shape[1] - 1
    share = np.concatenate([-back.sum(axis=1)[:, :, None], back.swapaxes(1, 2)], axis=2)  # [m,d,corners]
    at = (np.repeat(np.arange(len(cells) * d), d + 1), np.repeat(cells, d, axis=0).ravel())
    return csr_matrix((share.ravel(), at), shape=(len(cells) * d, count))


def _strained(
    flat: csr_matrix, used: np.ndarray, weight: np.ndarray, material: Material, *, filled: np.ndarray | None = None, plane: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:  # fmt: skip
    """Slope of St. Venant's and Kirchhoff's energy with damping, where the deformation's columns are ``flat`` [m*d,n] times the vertices ``used`` and then nodes that are
    means ``filled`` of those: a formula, which is several times faster than derivatives by machine."""
    mu, lam = _lame(material.young, material.poisson)
    lam = material.young * material.poisson / (1 - material.poisson**2) if plane else lam
    many, d, own = len(weight), 2 if plane else 3, len(used)
    n = own + (0 if filled is None else len(filled))
    dense = many * d * n < DENSE or flat.nnz > FULL * many * d * n
    there, back = torch.from_numpy(flat.toarray() if dense else np.zeros((0, 0))), csr_matrix(flat.T)
    mean = None if filled is None or not len(filled) else torch.from_numpy(filled)
    at, w, eye, slow = torch.from_numpy(used), torch.from_numpy(weight)[:, None, None], torch.eye(d, dtype=torch.float64), material.damping  # fmt: skip

    def applied(x: Tensor) -> Tensor:  # [m,d,3b]
        return (there @ x if dense else torch.from_numpy(flat @ x.numpy())).view(many, d, -1)

    def one(x: Tensor, speed: Tensor) -> Tensor:
        f = applied(x)
        strain = (f @ f.mT - eye) / 2
        if slow:
            g = f @ applied(speed).mT
            strain = strain + slow / 2 * (g + g.mT)
        stress = 2 * mu * strain + lam * strain.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] * eye
        pull = (w * (stress @ f)).reshape(-1, 3)
        out = there.T @ pull if dense else torch.from_numpy(back @ pull.numpy())
        return out if mean is None else out[:own] + mean.T @ out[own:]

    def nodes(x: Tensor) -> Tensor:
        return x if mean is None else torch.cat([x, mean @ x])

    def force(x: Tensor, speed: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for b in range(len(x)):
            out[b, at] = one(nodes(x[b, at]), nodes(speed[b, at]))
        return out

    return force


def _stretched(at: Tensor, slopes: np.ndarray, weight: np.ndarray, material: Material) -> Callable[[Tensor], Tensor]:
    """Energy at places whose deformation is slopes [m,n,3] of the vertices ``at``."""
    mu, lam = _lame(material.young, material.poisson)
    ways, w = torch.from_numpy(np.ascontiguousarray(slopes.transpose(1, 0, 2).reshape(len(at), -1))), torch.from_numpy(weight)  # fmt: skip

    def energy(x: Tensor) -> Tensor:
        f = (x[:, at].mT @ ways.to(x.dtype)).unflatten(2, (-1, 3)).movedim(2, 1)
        return (w.to(x.dtype) * _kirchhoff(f.mT @ f, mu, lam)).sum(1)

    return energy


def _cells(at: Tensor, nodes: np.ndarray, filled: np.ndarray, cells: np.ndarray, total: float, material: Material) -> tuple[Callable[[Tensor], Tensor], csr_matrix, np.ndarray]:  # fmt: skip
    """Energy of tetrahedra between vertices ``at`` and nodes that are means ``filled`` [n,v] of them; columns of their deformation, and volumes."""
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

    ways = _columns(cells, np.linalg.inv(edges), len(nodes) + len(filled))
    return energy, ways, size * total / size.sum()


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


def spline(nodes: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def scattered(x: np.ndarray, most: int) -> np.ndarray:
    """Which of places to keep so that they are far from one another."""
    if len(x) <= most:
        return np.arange(len(x))
    out, near = [0], np.linalg.norm(x - x[0], axis=1)
    while len(out) < most:
        out.append(int(near.argmax()))
        near = np.minimum(near, np.linalg.norm(x - x[out[-1]], axis=1))
    return np.sort(out)


# ---------------------------------------------------------------------- sheets


def _sheet(mesh: Mesh, faces: np.ndarray, material: Material) -> tuple[_Term, csr_matrix, np.ndarray]:
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
        return out + plate / 2 * (curvature(y).square() / own.to(y.dtype)).sum(1)

    def curvature(y: Tensor) -> Tensor:
        turn = _angles(y, hinge) - rest.to(y.dtype)
        share = half.to(y.dtype) * torch.atan2(turn.sin(), turn.cos())  # of an edge's curvature for each of its ends
        return torch.zeros(len(y), len(known), dtype=y.dtype).index_add(1, ends[0], share).index_add(1, ends[1], share)

    ways = _columns(near.reshape(-1, 3), np.linalg.inv(np.linalg.qr(edges)[1]), len(known))
    stretched = _strained(ways, known, thick * size, material, plane=True)

    def force(y: Tensor, speed: Tensor) -> Tensor:
        curved, back = torch.func.vjp(curvature, y)[:2]
        if material.damping:
            curved = curved + material.damping * torch.func.jvp(curvature, (y,), (speed,))[1]  # type: ignore[misc]
        return stretched(y, speed) + back(plate * curved / own)[0]

    sides = np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    pairs, index = np.unique(sides, axis=0, return_inverse=True)
    weight = np.bincount(index.ravel(), np.repeat(thick * size / 3, 3))
    rows = csr_matrix((np.full(2 * len(pairs), 0.5), (np.repeat(np.arange(len(pairs)), 2), pairs.ravel())), shape=(len(pairs), len(x)))  # fmt: skip
    if material.even:
        rows = csr_matrix((np.ones(len(known)), (np.arange(len(known)), known)), shape=(len(known), len(x)))
        weight = np.full(len(known), thick * size.sum() / len(known))
    return _Term(energy, force), rows, weight


# ---------------------------------------------------------------------- rods


def _tube(mesh: Mesh, faces: np.ndarray) -> np.ndarray | None:
    """Which ring each vertex of a closed part is of, if it is a straight tube."""
    own = np.unique(faces)
    x = mesh.vertices[own] - mesh.vertices[own].mean(axis=0)
    along = x @ np.linalg.svd(x, full_matrices=False)[2][0]
    found = rings(mesh.vertices, faces, int(own[along.argmin()]), own)
    if found is None:
        return None
    line = np.diff([mesh.vertices[own[found == r]].mean(axis=0) for r in range(found.max() + 1)], axis=0)
    line /= np.linalg.norm(line, axis=1, keepdims=True)
    turn = np.arccos(np.clip((line[1:] * line[:-1]).sum(axis=1), -1, 1)).sum()
    return found if turn < STRAIGHT else None


def _rod(mesh: Mesh, own: np.ndarray, ring: np.ndarray, filled: float, material: Material) -> tuple[_Term, csr_matrix, np.ndarray]:  # fmt: skip
    """Energy of a straight tube by the line of its rings' middles, E A, E I and G J of a round section as thick as its rings; points by Simpson's rule
    between rings."""
    count, v = int(ring.max()) + 1, len(mesh.vertices)
    members = [own[ring == r] for r in range(count)]
    middle = np.zeros((count, v))
    for r, at in enumerate(members):
        middle[r, at] = 1 / len(at)
    line = middle @ mesh.vertices
    step = np.diff(line, axis=0)
    long = np.linalg.norm(step, axis=1)
    radius = np.array([np.linalg.norm(mesh.vertices[at] - line[r], axis=1) for r, at in enumerate(members[1:-1], 1)], dtype=object)  # fmt: skip
    thick = float(np.mean(np.concatenate([np.asarray(one, np.float64) for one in radius])))
    # A vertex of each ring, as straight above that of the ring before as there is one: how far the tube is twisted.
    marks = [int(members[0][0])]
    for r in range(1, count):
        marks.append(int(members[r][np.argmax((mesh.vertices[members[r]] - line[r]) @ (mesh.vertices[marks[-1]] - line[r - 1]))]))  # fmt: skip
    means, mark, length = torch.from_numpy(middle), torch.tensor(marks), torch.from_numpy(long)
    inertia = np.pi * thick**4 / 4
    stretch, bend = material.young * np.pi * thick**2, material.young * inertia
    joint = torch.from_numpy((long[1:] + long[:-1]) / 2)
    twisted = bend / (1 + material.poisson)  # G J, of a round section

    def strains(x: Tensor) -> Tensor:
        """Times the roots of their stiffnesses: half the square of what differs from the rest is energy."""
        at = means.to(x.dtype) @ x
        way = at[:, 1:] - at[:, :-1]
        far = way.norm(dim=2)
        way = way / far[..., None]
        kink = way[:, 1:] - way[:, :-1]  # turned by a, it is 2 sin(a/2) long
        s = kink.square().sum(2, keepdim=True)
        angle = kink * (1 + s / 24 + 3 * s**2 / 640 + 5 * s**3 / 7168 + 35 * s**4 / 294912)  # 2 asin(|kink|/2) long
        side = x[:, mark] - at
        axis = way[:, :, None].expand(-1, -1, 2, -1)
        pair = torch.stack([side[:, :-1], side[:, 1:]], 2)
        pair = pair - (pair * axis).sum(-1, keepdim=True) * axis
        a, b = pair.unbind(2)
        turn = torch.atan2((torch.linalg.cross(a, b) * way).sum(2), (a * b).sum(2))
        out = ((far / length - 1) * (stretch * length).sqrt(), (angle * (bend / joint).sqrt()[:, None]).flatten(1))
        return torch.cat([*out, turn * (twisted / length).sqrt()], 1)

    begin = strains(torch.from_numpy(mesh.vertices)[None])

    def force(x: Tensor, speed: Tensor) -> Tensor:
        now, back = torch.func.vjp(strains, x)[:2]
        now = now - begin
        if material.damping:
            now = now + material.damping * torch.func.jvp(strains, (x,), (speed,))[1]  # type: ignore[misc]
        return back(now)[0]

    share = filled * long / long.sum()
    ends = np.concatenate([[0], share / 6]) + np.concatenate([share / 6, [0]])
    # Half of the mass is in the middle and half as far out as the surface, which is a cylinder's inertia about its axis.
    rows, masses = [middle, (middle[1:] + middle[:-1]) / 2], [ends / 2, share / 3]
    for r in range(count):
        rows.append(np.eye(v)[members[r]])
        masses.append(np.full(len(members[r]), ends[r] / 2 / len(members[r])))
        if r:  # halfway between each vertex and the one before it
            a, b = (mesh.vertices[members[i]] - line[i] for i in (r - 1, r))
            before = members[r - 1][np.linalg.norm(b[:, None] - a, axis=2).argmin(axis=1)]
            rows.append((np.eye(v)[members[r]] + np.eye(v)[before]) / 2)
            masses.append(np.full(len(members[r]), share[r - 1] / 3 / len(members[r])))
    return _Term(lambda x: (strains(x) - begin).square().sum(1) / 2, force), csr_matrix(np.concatenate(rows)), np.concatenate(masses)  # fmt: skip


# ---------------------------------------------------------------------- folds


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
