"""Meshes as solids: what is wrong with them, and points with masses that have their moments exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import nnls
from scipy.sparse import coo_matrix, csr_matrix, vstack
from scipy.sparse.csgraph import connected_components

SIZES = (1e-3, 100.0)
"""Metres between which an object's largest side is believed; a mesh without units is not in metres."""
FLAT = 1e-12
"""A triangle of less area than this, of the squared size, is none."""
SHELL = 1e-6
"""Volume below which, of the cubed size, a closed part is a shell all the same."""
_TETRA = np.array([[0.58541020, 0.13819660, 0.13819660, 0.13819660]])
_GAUSS = np.concatenate([np.roll(_TETRA, i, axis=1) for i in range(4)])
"""Barycentric coordinates of four points of a tetrahedron that integrate squares exactly."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Mesh:
    """Vertices and triangles."""

    vertices: Float64[np.ndarray, "v 3"]
    """Metres."""
    faces: Int64[np.ndarray, "f 3"]
    """Counter-clockwise seen from outside."""

    @property
    def size(self) -> float:
        """Diagonal of its box."""
        return float(np.linalg.norm(np.ptp(self.vertices, axis=0)))


def checked(mesh: Mesh, name: str = "the mesh") -> list[str]:
    """Refuse what is no object; return what is strange about one that is."""
    v, f = mesh.vertices, mesh.faces
    if len(v) < 4 or len(f) < 2:
        raise ValueError(f"{name} has {len(v)} vertices and {len(f)} triangles: that is no object")
    if not np.isfinite(v).all():
        raise ValueError(f"{name} has {int((~np.isfinite(v)).any(axis=1).sum())} vertices that are no numbers")
    if f.min() < 0 or f.max() >= len(v):
        raise ValueError(f"{name} has triangles of vertices {f.min()} to {f.max()}, and {len(v)} vertices")
    side = float(np.ptp(v, axis=0).max())
    if not SIZES[0] <= side <= SIZES[1]:
        raise ValueError(
            f"{name} is {side:g} m large; between {SIZES[0]:g} and {SIZES[1]:g} is believed: give it in metres"
        )
    said = []
    a, b, c = (v[f[:, i]] for i in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2
    if (bad := int((area < FLAT * mesh.size**2).sum())) == len(f):
        raise ValueError(f"every triangle of {name} is flat: it has no surface")
    if bad:
        said.append(f"{bad} of {len(f)} triangles have no area")
    edges = np.sort(f[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    _, count = np.unique(edges, axis=0, return_counts=True)
    if (count > 2).any():
        said.append(f"{int((count > 2).sum())} edges have more than two triangles (not a manifold)")
    if (count == 1).any():
        said.append(f"{int((count == 1).sum())} edges have one triangle: it is open, and weighed as a shell")
    if (many := parts(mesh).max() + 1) > 1:
        said.append(f"it has {many} parts that do not touch")
    return said


def parts(mesh: Mesh) -> Int64[np.ndarray, " v"]:
    """Which connected part each vertex is of."""
    f, n = mesh.faces, len(mesh.vertices)
    rows, columns = f[:, [0, 1]].T.reshape(2, -1), f[:, [1, 2]].T.reshape(2, -1)
    links = coo_matrix((np.ones(2 * len(f)), (rows.ravel(), columns.ravel())), shape=(n, n))
    return connected_components(links, directed=False)[1].astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighed:
    """Points with masses, each a mean of vertices: they follow the vertices when these move."""

    rows: csr_matrix
    """[n,v] of each point, sum 1."""
    mass: Float64[np.ndarray, " n"]
    """kg."""

    def points(self, vertices: Float64[np.ndarray, "*b v 3"]) -> Float64[np.ndarray, "*b n 3"]:
        """Where they are for vertices anywhere."""
        flat = vertices.reshape(-1, *vertices.shape[-2:])
        return np.stack([self.rows @ v for v in flat]).reshape(*vertices.shape[:-2], -1, 3)


def quadrature(mesh: Mesh, *, density: float = 1000.0, thick: float = 0.002, cells: int = 1) -> Weighed:
    """Few points that have the mass, centre and inertia of every part exactly: of its volume, or of a shell of so many metres where it is
    open. They stay exact while parts turn and stretch; ``cells`` along the largest side are matched one by one, for parts that bend."""
    label, rows, masses = parts(mesh), [], []
    for part in range(label.max() + 1):
        every, w = _inside(mesh, mesh.faces[label[mesh.faces[:, 0]] == part], thick)
        x = every @ mesh.vertices
        low, side = x.min(axis=0), max(float(np.ptp(x, axis=0).max()), 1e-9)
        cell = np.floor((x - low) / side * cells * (1 - 1e-9)).astype(int)
        for key in np.unique(cell, axis=0):
            mine = np.flatnonzero((cell == key).all(axis=1))
            keep, mass = _few(x[mine], density * w[mine])
            rows.append(every[mine[keep]])
            masses.append(mass)
    return Weighed(rows=csr_matrix(vstack(rows)), mass=np.concatenate(masses))


def _inside(mesh: Mesh, faces: np.ndarray, thick: float) -> tuple[csr_matrix, np.ndarray]:
    """Points as means of vertices, and volumes, of one part: tetrahedra from its middle to each triangle, or triangles with a thickness."""
    v, own = mesh.vertices, np.unique(faces)
    a, b, c = (v[faces[:, i]] for i in range(3))
    edges = np.sort(faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    closed = (np.unique(edges, axis=0, return_counts=True)[1] == 2).all()
    middle = v[own].mean(axis=0)
    volume = np.einsum("fi,fi->f", np.cross(a - middle, b - middle), c - middle) / 6
    size = float(np.linalg.norm(np.ptp(v[own], axis=0)))
    if closed and volume.sum() > SHELL * size**3:
        corners = np.repeat(_GAUSS[None], len(faces), axis=0)  # [f,4 points,4 corners]
        at = np.repeat(faces, 4, axis=0)
        rows = _rows(corners[..., 1:].reshape(-1, 3), at, len(v))
        centre = csr_matrix((np.full(len(own), 1 / len(own)), (np.zeros(len(own), int), own)), shape=(1, len(v)))
        return rows + csr_matrix(corners[..., :1].reshape(-1, 1)) @ centre, np.repeat(volume / 4, 4)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2
    middles = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])  # of its edges: exact for squares
    rows = _rows(np.tile(middles, (len(faces), 1)), np.repeat(faces, 3, axis=0), len(v))
    return rows, np.repeat(area * thick / 3, 3)


def _rows(share: np.ndarray, at: np.ndarray, count: int) -> csr_matrix:
    """Means of three vertices each."""
    n = np.repeat(np.arange(len(at)), 3)
    return csr_matrix((share.ravel(), (n, at.ravel())), shape=(len(at), count))


def _few(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most ten of the points, and masses that are not negative with the same moments up to squares (Tchakaloff's theorem)."""
    scale = max(float(np.ptp(x, axis=0).max()), 1e-12)
    u = (x - x.mean(axis=0)) / scale
    i, j = np.triu_indices(3)
    moments = np.concatenate([np.ones((1, len(u))), u.T, u[:, i].T * u[:, j].T])
    found, _ = nnls(moments, moments @ w / w.sum())
    return np.flatnonzero(found > 0), found[found > 0] * w.sum()
