"""What learned coordinates are compared with: linear bases of an object's motion, each as a body that the same mechanics moves.

From poses: principal components. From the rest shape alone: linear modal analysis, and skinning eigenmodes (Benchekroun et al. 2023). These
two need an elastic solid, and a surface with few vertices and loose parts is none, nor do the meshes at hand have tetrahedra; so the mesh is
embedded in a lattice of equal bricks, which parts share where they touch. The package simkit has both for tetrahedra only, and its solver
needs cvxopt; it is an oracle of the tests, not a requirement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from scipy.linalg import eigh
from scipy.sparse import coo_matrix, csr_matrix, diags, identity, kron
from scipy.sparse.linalg import eigsh
from torch import Tensor

from kinema4d.objects.body import Body
from kinema4d.objects.solid import Mesh, Weighed

KEPT = 1e-10
"""Of the largest eigenvalue of a mass matrix: directions below say nothing of their own."""
LIGHT = 1e-2
"""Mass of a vertex at least, of the mean, so that principal components see all of them."""
INSIDE = 0.5
"""Winding number above which a place is in the solid."""
FAINT = 1e-2
"""Share of a brick that is filled at least, where the surface touches it."""
_CORNERS = np.array(list(product((0.0, 1.0), repeat=3)))
_GAUSS = np.array(list(product((0.5 - 0.5 / np.sqrt(3), 0.5 + 0.5 / np.sqrt(3)), repeat=3)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Peer:
    """A body whose shape is linear in its coordinates."""

    body: Body
    """What is simulated."""
    vertices: Callable[[Tensor], Tensor]
    """Coordinates [b,k] to vertices [b,v,3], metres."""
    rest: Tensor
    """[k] coordinates of the rest shape, or what comes closest."""
    span: Tensor
    """[k] of each coordinate: where some vertex is displaced by the object's size. To draw starts from; it is no limit."""
    frequencies: Tensor | None = None
    """[k] rad/s of vibration modes."""


def static_body(mesh: Mesh, weighed: Weighed) -> Peer:
    """Nothing deforms. As a body needs an unknown, it moves as a whole in a simulation; ``free=False`` keeps it in inverse kinematics."""
    none = np.zeros((len(mesh.vertices), 3, 0))
    return _peer(mesh.vertices, none, weighed, _applied(weighed.rows, none), free=True, rest=np.zeros(0))


def pca_body(mesh: Mesh, poses: Float64[np.ndarray, "t v 3"], weighed: Weighed, k: int, *, free: bool = False) -> Peer:
    """The ``k`` directions in which poses differ most from their mean, by mass; coordinates reach as far as in the poses."""
    t, v = len(poses), len(mesh.vertices)
    if poses.shape[1] != v:
        raise ValueError(f"poses have {poses.shape[1]} vertices and the mesh has {v}")
    if not np.isfinite(poses).all():
        raise ValueError(
            f"{int((~np.isfinite(poses)).any(axis=(1, 2)).sum())} of {t} poses have vertices that are no numbers"
        )
    if not 1 <= k <= min(t - 1, 3 * v):
        raise ValueError(f"{t} poses of {v} vertices have 1 to {min(t - 1, 3 * v)} directions, asked for {k}")
    mass = weighed.rows.T @ weighed.mass
    root = np.sqrt(np.maximum(mass, LIGHT * mass.mean()))[:, None]
    mean = poses.mean(axis=0)
    flat = ((poses - mean) * root).reshape(t, -1)
    _, values, ways = np.linalg.svd(flat, full_matrices=False)
    if values[k - 1] < np.sqrt(KEPT) * max(values[0], 1e-12):
        known = int((values >= np.sqrt(KEPT) * max(values[0], 1e-12)).sum())
        raise ValueError(f"the poses differ in {known} directions only, asked for {k}")
    q = flat @ ways[:k].T
    basis = np.moveaxis(ways[:k].reshape(k, v, 3) / root, 0, -1)
    rest = ((mesh.vertices - mean) * root).reshape(-1) @ ways[:k].T
    reach = np.stack([q.min(axis=0), q.max(axis=0)], axis=1)
    return _peer(mean, basis, weighed, _applied(weighed.rows, basis), free=free, rest=rest, reach=reach)


def modal_body(
    mesh: Mesh,
    weighed: Weighed,
    k: int,
    *,
    young: float = 1e6,
    poisson: float = 0.3,
    held: Sequence[int] = (),
    cells: int = 16,
    thick: float = 0.002,
) -> Peer:
    """The ``k`` slowest vibrations of the object as one elastic solid (``young`` in pascal), with vertices ``held``; without any, its six
    rigid motions are left to the body's frame. ``cells`` bricks along its largest side; where it is open it is so many metres ``thick``."""
    grid = _lattice(mesh, weighed, cells, thick, held)
    stiff = _assembled(grid.bricks, grid.fill, _brick(grid.side, young, poisson))
    mass = csr_matrix(kron(grid.mass, identity(3)))
    ways = _slowest(stiff, mass, np.repeat(grid.open, 3), k + (0 if len(held) else 6))
    if not len(held):
        ways = _without(ways, _rigid(grid.nodes), mass)
    field = ways.reshape(len(grid.nodes), 3, -1)
    squares, mix = eigh(ways.T @ (stiff @ ways), _inertia(_applied(grid.points, field), weighed))
    frequency = torch.from_numpy(np.sqrt(np.maximum(squares, 0)))
    basis, inner = _applied(grid.rows, field @ mix), _applied(grid.points, field @ mix)
    energy = lambda q: 0.5 * (frequency.to(q.dtype) * q).square().sum(1)  # noqa: E731
    rest = np.zeros(k)
    return _peer(mesh.vertices, basis, weighed, inner, free=not len(held), rest=rest, energy=energy, frequencies=frequency)  # fmt: skip


def skinning_modes_body(
    mesh: Mesh,
    weighed: Weighed,
    k: int,
    *,
    young: float = 1e6,
    poisson: float = 0.3,
    held: Sequence[int] = (),
    cells: int = 10,
    thick: float = 0.002,
) -> Peer:
    """The ``k`` smoothest weights over the object, each with an affine motion of twelve numbers. Without ``held`` vertices the first weight
    is even, and its affine motion has all rigid ones: the frame stands still. The energy (St. Venant and Kirchhoff's) does not mind turning."""
    grid = _lattice(mesh, weighed, cells, thick, held)
    weights = _slowest(_assembled(grid.bricks, grid.fill, _smooth(grid.side)), grid.mass, grid.open, k)
    one = np.concatenate([grid.nodes - grid.nodes.mean(axis=0), np.ones((len(grid.nodes), 1))], axis=1)
    field = np.einsum("nw,na,ij->niwaj", weights, one, np.eye(3)).reshape(len(one), 3, -1)
    values, mix = eigh(np.einsum("nic,nid->cd", field, _applied(grid.mass, field)))
    field = field @ mix[:, values > KEPT * values[-1]]
    values, mix = eigh(_inertia(_applied(grid.points, field), weighed))
    field = field @ (mix / np.sqrt(values))
    basis, inner = _applied(grid.rows, field), _applied(grid.points, field)
    rest, energy = np.zeros(basis.shape[2]), _bent(grid, field, young, poisson)
    return _peer(mesh.vertices, basis, weighed, inner, free=False, rest=rest, energy=energy)


# ---------------------------------------------------------------------- a linear body


def _peer(
    centre: np.ndarray,
    basis: np.ndarray,
    weighed: Weighed,
    inner: np.ndarray,
    *,
    free: bool,
    rest: np.ndarray,
    reach: np.ndarray | None = None,
    energy: Callable[[Tensor], Tensor] | None = None,
    frequencies: Tensor | None = None,
) -> Peer:
    """Vertices ``centre`` [v,3] + ``basis`` [v,3,k] q, and points with masses that move by ``inner`` [n,3,k] q."""
    k = basis.shape[2]

    def follow(x: np.ndarray, b: np.ndarray) -> Callable[[Tensor], Tensor]:
        at, ways = (
            torch.from_numpy(np.ascontiguousarray(x)),
            torch.from_numpy(np.ascontiguousarray(b.reshape(x.size, k))),
        )
        return lambda q: at.to(q.dtype) + (q @ ways.to(q.dtype).T).unflatten(1, at.shape)

    body = Body(
        shape=follow(weighed.points(centre), inner), mass=torch.from_numpy(weighed.mass), coordinates=k, free=free, energy=energy,
        reach=None if reach is None else torch.from_numpy(reach),
    )  # fmt: skip
    most = np.linalg.norm(basis, axis=1).max(axis=0)
    span = torch.from_numpy(np.linalg.norm(np.ptp(centre, axis=0)) / np.maximum(most, 1e-300))
    return Peer(
        body=body, vertices=follow(centre, basis), rest=torch.from_numpy(rest), span=span, frequencies=frequencies
    )


def _applied(rows: Any, field: np.ndarray) -> np.ndarray:
    """Sparse means [m,n] of displacements [n,3,k]: [m,3,k]."""
    many, count = rows.shape
    if count != len(field):
        raise ValueError(f"weighed has points of {count} vertices, and the mesh has {len(field)}")
    return (rows @ field.reshape(count, -1)).reshape(many, *field.shape[1:])


def _inertia(inner: np.ndarray, weighed: Weighed) -> np.ndarray:
    """[k,k] mass matrix of displacements [n,3,k] of points with masses, if it tells all of them apart."""
    own = np.einsum("n,nic,nid->cd", weighed.mass, inner, inner)
    values = np.linalg.eigvalsh(own)
    if (known := int((values > KEPT * values[-1]).sum())) < len(own):
        raise ValueError(f"{len(weighed.mass)} points with masses tell {known} of {len(own)} motions apart: weigh the object in more cells")  # fmt: skip
    return own


# ---------------------------------------------------------------------- eigenvectors


def _slowest(stiff: csr_matrix, mass: csr_matrix, open_: np.ndarray, k: int) -> np.ndarray:
    """[n,k] with the smallest stiffness by mass, unit mass, zero where it is not open."""
    at = np.flatnonzero(open_)
    if not 1 <= k <= len(at) - 2:
        raise ValueError(f"the lattice has {len(at)} unknowns, which is too few for {k} modes: more cells")
    inner, heavy = stiff[at][:, at].tocsc(), mass[at][:, at].tocsc()
    shift = -1e-7 * inner.diagonal().mean() / heavy.diagonal().mean()  # below zero, where the matrix can be factored
    found: Any = eigsh(inner, k, M=heavy, sigma=shift, v0=np.random.default_rng(0).normal(size=len(at)))
    out = np.zeros((len(open_), k))
    out[at] = found[1]
    return out


def _rigid(x: np.ndarray) -> np.ndarray:
    """[3n,6] shifts and turns of nodes [n,3]."""
    u = x - x.mean(axis=0)
    return np.concatenate(
        [np.tile(np.eye(3), (len(x), 1)), *[np.cross(e, u).reshape(-1, 1) for e in np.eye(3)]], axis=1
    )


def _without(ways: np.ndarray, rigid: np.ndarray, mass: csr_matrix) -> np.ndarray:
    """What is left of ``ways`` [n,k+6] beside the six rigid motions, by mass: [n,k]."""
    left = ways - rigid @ np.linalg.solve(rigid.T @ (mass @ rigid), rigid.T @ (mass @ ways))
    values, mix = eigh(left.T @ (mass @ left))
    return left @ (mix / np.sqrt(np.maximum(values, 1e-300)))[:, 6:]


# ---------------------------------------------------------------------- the lattice


@dataclass(frozen=True, kw_only=True, eq=False)
class _Lattice:
    nodes: np.ndarray
    """[n,3] corners of bricks, metres."""
    bricks: np.ndarray
    """[c,8] their corners."""
    fill: np.ndarray
    """[c] share of each that is solid."""
    side: np.ndarray
    """[3] of a brick, metres."""
    mass: csr_matrix
    """[n,n] kg."""
    open: np.ndarray
    """[n] whether a node may move."""
    rows: csr_matrix
    """[v,n] vertices as means of nodes."""
    points: csr_matrix
    """[m,n] points with masses as means of nodes: those around them, as means of vertices far apart would not bend with the solid."""


def _lattice(mesh: Mesh, weighed: Weighed, cells: int, thick: float, held: Sequence[int]) -> _Lattice:
    if cells < 1:
        raise ValueError(f"at least one cell is needed along the object, got {cells}")
    if len(held) and not 0 <= min(held) <= max(held) < len(mesh.vertices):
        raise ValueError(
            f"held vertices are {min(held)} to {max(held)}, and the mesh has 0 to {len(mesh.vertices) - 1}"
        )
    x = _applied(weighed.rows, mesh.vertices[..., None])[..., 0]
    low, wide = mesh.vertices.min(axis=0), np.ptp(mesh.vertices, axis=0)
    wide = np.maximum(wide, thick)
    count = np.maximum(np.ceil(wide / wide.max() * cells - 1e-6), 1).astype(int)
    side = wide / count
    place = lambda x: np.clip(np.floor((x - low) / side).astype(int), 0, count - 1)  # noqa: E731
    flat = lambda c, shape: np.ravel_multi_index(tuple(c.T), tuple(shape))  # noqa: E731
    corners = np.stack(np.unravel_index(np.arange(count.prod()), tuple(count)), axis=1)
    inside = np.zeros(len(corners))
    for spot in _GAUSS:
        inside += (_winding(mesh, low + (corners + spot) * side) > INSIDE) / len(_GAUSS)
    skin, area = _samples(mesh, side.min() / 2)
    np.add.at(inside, flat(place(skin), count), area * thick / side.prod())
    touched = np.unique(flat(place(np.concatenate([skin, mesh.vertices])), count))
    inside[touched] = np.maximum(inside[touched], FAINT)
    used = np.flatnonzero(inside > 0)
    every = flat((corners[used][:, None] + _CORNERS.astype(int)).reshape(-1, 3), count + 1)
    known, bricks = np.unique(every, return_inverse=True)
    bricks, fill = bricks.reshape(-1, 8), np.minimum(inside[used], 1)
    nodes = low + np.stack(np.unravel_index(known, tuple(count + 1)), axis=1) * side

    def means(x: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
        """Of the nodes of each place's brick; and where there is one."""
        at = place(x)
        u = ((x - low) / side - at)[:, None]
        share = np.prod(np.where(_CORNERS[None] == 1, u, 1 - u), axis=2)
        which = np.minimum(np.searchsorted(used, flat(at, count)), len(used) - 1)
        where = bricks[which].ravel()
        rows = csr_matrix((share.ravel(), (np.repeat(np.arange(len(x)), 8), where)), shape=(len(x), len(nodes)))
        return rows, used[which] == flat(at, count)

    rows, _ = means(mesh.vertices)
    inner, found = means(x)  # outside of a hollow solid there are no bricks
    inner = diags(found.astype(float)) @ inner + diags((~found).astype(float)) @ (weighed.rows @ rows)
    free = np.ones(len(nodes), bool)
    still = rows[list(held)].tocoo()
    free[still.col[still.data > 1e-9]] = False
    corner = np.where(_CORNERS[None] == 1, _GAUSS[:, None], 1 - _GAUSS[:, None]).prod(axis=2)
    mass = _assembled(bricks, fill, corner.T @ corner / 8)
    mass *= weighed.mass.sum() / mass.sum()
    return _Lattice(nodes=nodes, bricks=bricks, fill=fill, side=side, mass=mass, open=free, rows=rows, points=csr_matrix(inner))  # fmt: skip


def _winding(mesh: Mesh, x: np.ndarray) -> np.ndarray:
    """How often the surface goes round each place: solid angles of its triangles (van Oosterom and Strackee)."""
    out = np.zeros(len(x))
    for i in range(0, len(x), step := max(1, 1_000_000 // len(mesh.faces))):
        a, b, c = (mesh.vertices[mesh.faces[:, j]] - x[i : i + step, None] for j in range(3))
        la, lb, lc = (np.linalg.norm(v, axis=-1) for v in (a, b, c))
        dot = lambda u, v: np.einsum("xfi,xfi->xf", u, v)  # noqa: E731
        below = la * lb * lc + dot(a, b) * lc + dot(b, c) * la + dot(c, a) * lb
        out[i : i + step] = np.arctan2(dot(a, np.cross(b, c)), below).sum(axis=1) / (2 * np.pi)
    return out


def _samples(mesh: Mesh, apart: float) -> tuple[np.ndarray, np.ndarray]:
    """Places on the surface about so far from each other, and their areas."""
    out, areas = [], []
    for a, b, c in mesh.vertices[mesh.faces]:
        n = max(1, int(np.ceil(max(np.linalg.norm(b - a), np.linalg.norm(c - a), np.linalg.norm(c - b)) / apart)))
        i, j = (v.ravel() + 0.5 for v in np.mgrid[:n, :n])
        u = np.stack([i, j], axis=1) / n
        u = np.where(u.sum(axis=1, keepdims=True) > 1, 1 - u, u)  # the other half of the square, folded back
        out.append(a + u @ np.stack([b - a, c - a]))
        areas.append(np.full(n * n, np.linalg.norm(np.cross(b - a, c - a)) / 2 / (n * n)))
    return np.concatenate(out), np.concatenate(areas)


def _assembled(bricks: np.ndarray, fill: np.ndarray, brick: np.ndarray) -> csr_matrix:
    """All bricks together, each as far as it is filled."""
    each = len(brick) // 8
    at = (bricks[:, :, None] * each + np.arange(each)).reshape(len(bricks), -1)
    where = (np.repeat(at, len(brick), axis=1).ravel(), np.tile(at, (1, len(brick))).ravel())
    n = each * (int(bricks.max()) + 1)
    return csr_matrix(coo_matrix(((fill[:, None, None] * brick).ravel(), where), shape=(n, n)))


def _slopes(side: np.ndarray) -> np.ndarray:
    """[8 Gauss points,8 corners,3] of a brick's corner functions."""
    sign = 2 * _CORNERS - 1
    value = np.where(_CORNERS[None] == 1, _GAUSS[:, None], 1 - _GAUSS[:, None])
    return np.stack([sign[:, i] * np.delete(value, i, axis=2).prod(axis=2) for i in range(3)], axis=2) / side


def _smooth(side: np.ndarray) -> np.ndarray:
    """[8,8] Dirichlet's energy of a brick."""
    return np.einsum("gai,gbi->ab", _slopes(side), _slopes(side)) * side.prod() / 8


def _brick(side: np.ndarray, young: float, poisson: float) -> np.ndarray:
    """[24,24] stiffness of a brick. Wilson's incompatible modes are added inside and solved for: one brick across a beam bends as it should."""
    mu, lam = _lame(young, poisson)
    law = np.diag([2 * mu] * 3 + [mu] * 3)
    law[:3, :3] += lam
    bubbles = np.stack([np.diag(-2 * (2 * g - 1)) * 2 / side for g in _GAUSS])  # of 1 - (2u - 1)^2 in each direction
    slope = np.concatenate([_slopes(side), bubbles], axis=1)  # [g,11,3]
    strain = np.zeros((8, 6, len(slope[0]), 3))
    for i in range(3):
        strain[:, i, :, i] = slope[..., i]
    for row, (i, j) in enumerate(((1, 2), (0, 2), (0, 1))):
        strain[:, 3 + row, :, i], strain[:, 3 + row, :, j] = slope[..., j], slope[..., i]
    strain = strain.reshape(8, 6, -1)
    full = np.einsum("gsa,st,gtb->ab", strain, law, strain) * side.prod() / 8
    return full[:24, :24] - full[:24, 24:] @ np.linalg.solve(full[24:, 24:], full[24:, :24])


def _lame(young: float, poisson: float) -> tuple[float, float]:
    if not (young > 0 and -1 < poisson < 0.5):
        raise ValueError(f"Young's modulus is positive and Poisson's ratio in (-1, 0.5), got {young} and {poisson}")
    return young / (2 + 2 * poisson), young * poisson / ((1 + poisson) * (1 - 2 * poisson))


def _bent(grid: _Lattice, field: np.ndarray, young: float, poisson: float) -> Callable[[Tensor], Tensor]:
    """Elastic energy of displacements ``field`` [n,3,k] q."""
    mu, lam = _lame(young, poisson)
    ways = np.einsum("gaj,caik->cgijk", _slopes(grid.side), field[grid.bricks])
    stretch = torch.from_numpy(np.ascontiguousarray(ways.reshape(-1, field.shape[2])))
    volume = torch.from_numpy(np.repeat(grid.fill * grid.side.prod() / 8, 8))

    def energy(q: Tensor) -> Tensor:
        f = (q @ stretch.to(q.dtype).T).unflatten(1, (-1, 3, 3)) + torch.eye(3, dtype=q.dtype)
        e = (f.mT @ f - torch.eye(3, dtype=q.dtype)) / 2
        trace = e.diagonal(dim1=-2, dim2=-1).sum(-1)
        return (volume.to(q.dtype) * (mu * e.square().sum((-2, -1)) + lam / 2 * trace.square())).sum(1)

    return energy
