"""One mesh that was never seen, with the field of :mod:`.field`: few coordinates of it, as a body for the mechanics,
and samples of what it may do.

x = F(X; mu + A q). mu is the mean of the latents that go with the mesh, A the directions in which they move it
(active subspace, NeuROK section 4.3), q the coordinates that are left, of which each is drawn from N(0, 1) by the
prior. At q = 0 the mesh is not at rest but as it is on average: ``rest()`` says where it was seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import csr_matrix
from scipy.spatial import KDTree
from torch import Tensor

from kinema4d.objects import dual
from kinema4d.objects.body import Body
from kinema4d.objects.field import FieldNet, Points, load_field
from kinema4d.objects.inverse import reach_points
from kinema4d.objects.look import box_of
from kinema4d.objects.reduce import Freedom, Subspace, active_subspace, by_errors, by_values
from kinema4d.objects.solid import Mesh, Weighed, checked, parts, quadrature

SPAN = 3.0
"""Range of a coordinate, in deviations of the prior."""
DRAWS = 12
"""Of latents, to find directions."""
FOLLOWED = 4
"""Nearest sampled points, whose mean a vertex follows where it is not asked about itself."""
TRIED = 6
"""Poses that a number of coordinates is tried on, where there are some."""
MOST = 8
"""Coordinates that are tried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldObject:
    """What the model says of a mesh."""

    net: FieldNet
    """In float64."""
    mesh: Mesh
    """As it was seen, metres."""
    weighed: Weighed
    """Points with masses, means of vertices."""
    own: Points
    """[1,v,3] vertices in its unit box."""
    look: Points
    """[1,n,3] points that were seen."""
    corners: Int64[np.ndarray, "n 3"]
    """Vertices of the triangles that they are on."""
    share: Float64[np.ndarray, "n 3"]
    """And where on them."""
    seen: Tensor
    """[1,tokens,width] what the prior encoder saw."""
    mean: Tensor
    """[latents] of the prior."""
    directions: Tensor
    """[latents,k] in columns, orthonormal; the first moves the mesh most."""
    values: Subspace
    """Of all latents."""
    freedom: Freedom
    """How many coordinates there are, or why that is not known."""
    near: Int64[Tensor, "v m"] | None
    """Sampled points that vertices follow; None where they are asked about themselves."""

    @property
    def count(self) -> int:
        """Coordinates."""
        return self.directions.shape[1]

    def vertices(self, q: Tensor) -> Tensor:
        """[b,v,3] metres for coordinates [b,k]."""
        return self.decoded(self.mean + q.double() @ self.directions.T)

    def decoded(self, z: Tensor) -> Tensor:
        """[b,v,3] metres for latents [b,latents]."""
        middle, size = box_of(self.mesh.vertices)
        if self.near is None:
            x = self.net.moved(self._asked(z, self.own), self.own.x)
        else:  # section 4.1: vertices follow the mean of their nearest sampled points
            made = self._asked(z, self.look)[:, self.near]
            even = made.new_full(made.shape[:-1], 1 / FOLLOWED)
            x = self.net.moved(dual.blended(made, even) if self.net.config.dual else made.mean(-2), self.own.x)
        return torch.from_numpy(middle) + size * x

    def _asked(self, z: Tensor, where: Points) -> Tensor:
        return self.net.decoded(self.seen.expand(len(z), -1, -1), z, where)  # one object: its points are embedded once

    def coordinates(self, poses: Float64[np.ndarray, "t v 3"]) -> Tensor:
        """[t,k] what the variational encoder takes poses for: a guess to begin from, that the nearest coordinates are
        then found from."""
        middle, size = box_of(self.mesh.vertices)
        turns = torch.from_numpy(dual.turns_of(self.mesh.vertices, poses, self.mesh.faces))[:, self.corners]
        share = torch.from_numpy(self.share)
        y = (torch.from_numpy(poses[:, self.corners]) * share[..., None]).sum(2)
        y = (y - torch.from_numpy(middle)) / size
        deformation = y - self.look.x
        if self.net.config.dual:
            r = dual.blended(turns, share)
            deformation = dual.dual(r, y - dual.turned(r, self.look.x))
        z, _ = self.net.encoded(self.look.repeated(len(poses)), deformation)
        return (z - self.mean) @ self.directions

    def body(self) -> Body:
        """For the mechanics, in metres."""
        rows = _dense(self.weighed)
        return Body(
            shape=lambda q: rows.to(q.dtype) @ self.vertices(q).to(q.dtype),
            mass=torch.from_numpy(self.weighed.mass),
            coordinates=self.count,
            reach=torch.tensor([[-SPAN, SPAN]] * self.count, dtype=torch.float64),
        )

    def surface(self) -> Body:
        """Its vertices, all of the same mass: for poses that are known at the surface."""
        return replace(self.body(), shape=self.vertices, mass=torch.ones(len(self.mesh.vertices), dtype=torch.float64))

    def rest(self) -> Tensor:
        """[k] coordinates at which the mesh is as it was seen, or nearly."""
        return self.reached(self.mesh.vertices)

    def reached(
        self,
        pose: Float64[np.ndarray, "v 3"],
        *,
        on: Int64[np.ndarray, " p"] | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """[k] the coordinates that come nearest to vertices ``on`` (all without) of a pose, from ``start`` [s,k], or
        from the prior's mean and from the encoder's guess."""
        if start is None:
            start = torch.cat([torch.zeros(1, self.count).double(), self.coordinates(pose[None])])
        some = np.arange(len(pose)) if on is None else on
        body = replace(self.surface(), shape=lambda q: self.vertices(q)[:, some], mass=torch.ones(len(some)).double())
        return reach_points(body, torch.from_numpy(pose[some]), start=start, free=False).q

    def sampled(self, count: int, *, seed: int = 0, reduced: bool = True) -> Tensor:
        """[count,v,3] metres, drawn from the prior: of the coordinates, or of all latents."""
        g = torch.Generator().manual_seed(seed)
        if reduced:
            return self.vertices(torch.randn(count, self.count, generator=g, dtype=torch.float64))
        return self.decoded(self.mean + torch.randn(count, len(self.mean), generator=g, dtype=torch.float64))


def field_object(
    mesh: Mesh,
    weights: str | Path,
    *,
    coordinates: int | None = None,
    reduced: bool = True,
    scalar: bool = False,
    poses: Float64[np.ndarray, "t v 3"] | None = None,
    follow: Literal["query", "average"] = "query",
    density: float = 1000.0,
    seed: int = 0,
) -> FieldObject:
    """What the model makes of an unseen mesh. How many ``coordinates``, unless it is said: where ``poses`` are known
    the fewest that reconstruct them about as well as many do, else by the eigenvalues alone. ``scalar`` is the
    paper's subspace, of the length of the deformation; not ``reduced`` keeps all latents as they are (its
    ablation)."""
    checked(mesh)
    net = load_field(weights)[0].double()
    d = net.config.latents
    if coordinates is not None and not 1 <= coordinates <= d:
        raise ValueError(f"the model has {d} latents, asked for {coordinates} coordinates")
    at, share = drawn(mesh.vertices, mesh.faces, net.config.points, np.random.default_rng(seed))
    own = _points(mesh, net.config.parts)
    x = (own.x[0, at] * torch.from_numpy(share)[..., None]).sum(1)[None]
    look = Points(x=x, part=None if own.part is None else own.part[:, at[:, 0]])
    with torch.no_grad():
        seen, mean = net.conditioned(look)
    near = None
    if follow == "average":
        near = torch.from_numpy(KDTree(look.x[0].numpy()).query(own.x[0].numpy(), k=FOLLOWED)[1])
    weighed = quadrature(mesh, density=density)
    every = torch.eye(d, dtype=torch.float64)
    none = Freedom(count=None, errors=(), ratios=(), why=f"not reduced: all {d} latents")
    values = Subspace(values=torch.ones(d).double(), directions=every)
    out = FieldObject(
        net=net,
        mesh=mesh,
        weighed=weighed,
        own=own,
        look=look,
        corners=at,
        share=share,
        seen=seen,
        mean=mean[0],
        directions=every,
        values=values,
        freedom=none,
        near=near,
    )
    if reduced:
        g = torch.Generator().manual_seed(seed)
        body = out.body()
        values = active_subspace(
            body.shape, torch.randn(DRAWS, d, generator=g, dtype=torch.float64), body.mass, scalar=scalar
        )
        if poses is None or coordinates is not None:
            count, freedom = by_values(values)
        else:
            errors = [_error(_first(out, values, k), poses) for k in range(1, min(MOST, d) + 1)]
            count, freedom = by_errors(errors, values)
        out = replace(_first(out, values, coordinates or count), freedom=freedom)
    return out


def field_body(
    mesh: Mesh,
    weights: str | Path,
    *,
    coordinates: int | None = None,
    reduced: bool = True,
    density: float = 1000.0,
    seed: int = 0,
) -> Body:
    """Only what mechanics needs; :func:`field_object` says more."""
    return field_object(mesh, weights, coordinates=coordinates, reduced=reduced, density=density, seed=seed).body()


def edge_distortion(mesh: Mesh, made: Tensor) -> Tensor:
    """[b] mean relative change of the lengths of edges, of vertices [b,v,3]: nothing for what only moves."""
    edges = np.unique(np.sort(mesh.faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1), axis=0)
    long = lambda x: (x[..., edges[:, 0], :] - x[..., edges[:, 1], :]).norm(dim=-1)  # noqa: E731
    rest = long(torch.from_numpy(mesh.vertices))
    there = rest > 1e-9 * mesh.size
    return (long(made)[..., there] / rest[there] - 1).abs().mean(-1)


def drawn(
    vertices: np.ndarray, faces: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Corners [n,3] and shares [n,3] of points that are evenly spread over a surface."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    area = np.cumsum(np.linalg.norm(np.cross(b - a, c - a), axis=1))
    which = np.minimum(np.searchsorted(area, rng.random(count) * area[-1]), len(faces) - 1)
    cut = np.sort(rng.random((count, 2)), axis=1)
    return faces[which], np.stack([cut[:, 0], cut[:, 1] - cut[:, 0], 1 - cut[:, 1]], 1)


def parts_of(vertices: Float64[np.ndarray, "v 3"], label: Int64[np.ndarray, " v"]) -> Float64[np.ndarray, "v 4"]:
    """Middle and radius (root mean square) of the part of every vertex."""
    count = np.bincount(label)[:, None]
    middle = np.stack([np.bincount(label, vertices[:, i]) for i in range(3)], 1) / count
    radius = np.sqrt(np.bincount(label, np.square(vertices - middle[label]).sum(1))[:, None] / count)
    return np.concatenate([middle, radius], 1)[label]


def _points(mesh: Mesh, told: bool) -> Points:
    """Vertices in the unit box."""
    middle, size = box_of(mesh.vertices)
    x = (mesh.vertices - middle) / size
    part = torch.from_numpy(parts_of(x, parts(mesh)))[None] if told else None
    return Points(x=torch.from_numpy(x)[None], part=part)


def _dense(weighed: Weighed) -> Tensor:
    return torch.from_numpy(csr_matrix(weighed.rows).toarray())


def _first(out: FieldObject, values: Subspace, count: int) -> FieldObject:
    """With so many coordinates."""
    return replace(out, directions=values.directions[:, :count], values=values)


def _error(out: FieldObject, poses: Float64[np.ndarray, "t v 3"]) -> float:
    """Mean distance of vertices, of the size, at the nearest coordinates."""
    some = poses[:: max(1, len(poses) // TRIED)][:TRIED]
    made = out.vertices(torch.stack([out.reached(x) for x in some])).numpy()
    return float(np.linalg.norm(made - some, axis=-1).mean()) / out.mesh.size
