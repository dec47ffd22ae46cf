"""The kinematics of one object out of its own deforming mesh: few coordinates, and a screw per coordinate and piece (NeuROK for one instance).

Pieces on joints are found in closed form, joint by joint, and so is what bends (:mod:`.bends`). Of other pieces coordinates are found one by one. Each
new one begins with the motion that the ones before leave over, and then all of them and all screws are solved for together by least squares (Levenberg
and Marquardt; screws are eliminated piece by piece). A jointed object is exact with as many coordinates as it has degrees of freedom, and the search
ends there; what bends gets as many as the wanted accuracy needs. An auto-encoder with nested dropout, which this replaces, found six of eight objects
and took minutes; this finds all of them in seconds (docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import csr_matrix
from torch import Tensor

from kinema4d.objects.bends import bent, nearest_motion
from kinema4d.objects.body import Body
from kinema4d.objects.joints import joints, with_world
from kinema4d.objects.least import EXACT, Task, one_more
from kinema4d.objects.quick import moved_points, moved_points_and_slopes
from kinema4d.objects.reduce import Freedom, Subspace, active_subspace
from kinema4d.objects.screws import in_metres
from kinema4d.objects.solid import Mesh, Weighed, checked, parts, quadrature

RIGID = 1e-4
"""Deviation from a rigid motion, of the size, up to which a connected part is one piece."""
TIED = 0.05
"""What bends is tied to something where it moves less far, of the size; a rope is so at a place within it."""
MARGIN = 0.1
"""Beyond the range of coordinates that was seen, of that range, before the wall."""
POSES, POINTS = 80, 12
"""At most, in the least squares: poses, and points of each piece."""
ROUGH = 0.03
"""Mean error, of the size, up to which what bends is of use: its accuracy is graded, and said."""


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """How it is fitted."""

    most: int = 16
    """Coordinates at most of pieces that keep their form."""
    bends: int = 100
    """Shifts at most of what bends, beside those and the joints of ropes."""
    error: float = 2e-3
    """Mean error, of the size, that is good enough for what bends."""
    seed: int = 0
    """Of the choice of poses and points."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """One object: what is needed to move it."""

    mesh: Mesh
    """At rest, metres."""
    weighed: Weighed
    """Points with masses."""
    piece: Int64[np.ndarray, " v"]
    """Whose twists a vertex has."""
    twists: Float64[np.ndarray, "g k 6"]
    """Of every piece and coordinate, in the frame of the mesh, radians and metres per unit of the coordinate."""
    freedom: Freedom
    """What was found."""
    reach: Float64[np.ndarray, "k 2"]
    """Range of the coordinates that was learned from."""
    errors: Float64[np.ndarray, " k"]
    """Mean distance of vertices from the true ones on poses that were held out, of the size, with one coordinate, two, ...; of an object that was
    foretold, by how much its answers differ, which is all that is known."""

    @property
    def error(self) -> float:
        """With all coordinates."""
        return float(self.errors[-1]) if len(self.errors) else 0.0

    def vertices(self, q: Tensor) -> Tensor:
        """[b,v,3] metres for coordinates [b,k]."""
        rest, piece, twists = (torch.from_numpy(v) for v in (self.mesh.vertices, self.piece, self.twists))
        return moved_points(rest.to(q.dtype), piece, twists.to(q.dtype), q)

    def vertices_and_slopes(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and how they change with every coordinate [b,v,3,k]."""
        rest, piece, twists = (torch.from_numpy(v) for v in (self.mesh.vertices, self.piece, self.twists))
        return moved_points_and_slopes(rest.to(q.dtype), piece, twists.to(q.dtype), q)

    def coordinates(self, poses: Float64[np.ndarray, "t v 3"]) -> Tensor:
        """[t,k] that come nearest to given vertices, metres."""
        rest, goals = torch.from_numpy(self.mesh.vertices), torch.from_numpy(poses)
        task = Task(rest=rest, goals=goals, piece=torch.from_numpy(self.piece), count=len(self.twists))
        return task.solved(torch.from_numpy(self.twists))

    def body(self) -> Body:
        """For the mechanics: points with masses, in metres. Points within one piece move with it, others are means of vertices."""
        return screw_body(self.mesh, self.weighed, self.piece, self.twists, self.reach)


def screw_body(
    mesh: Mesh,
    weighed: Weighed,
    piece: Int64[np.ndarray, " v"],
    twists: Float64[np.ndarray, "g k 6"],
    reach: Float64[np.ndarray, "k 2"] | None = None,
) -> Body:
    """Points with masses that follow screws: those whose vertices are all of one piece by themselves, others as means of vertices."""
    rows = csr_matrix(weighed.rows)
    first = piece[rows.indices[rows.indptr[:-1]]]
    alone = np.array([(piece[rows.indices[a:b]] == f).all() for a, b, f in zip(rows.indptr[:-1], rows.indptr[1:], first, strict=True)])  # fmt: skip
    own = torch.from_numpy(np.asarray(rows @ mesh.vertices))
    mine = torch.from_numpy(first)
    used = np.unique(rows[~alone].indices)
    mix = torch.from_numpy(rows[~alone][:, used].toarray())
    inner = torch.from_numpy(mesh.vertices[used]), torch.from_numpy(piece[used])
    lone = torch.from_numpy(np.flatnonzero(alone))
    order = torch.from_numpy(np.argsort(np.concatenate([np.flatnonzero(alone), np.flatnonzero(~alone)])))
    screws = torch.from_numpy(twists)

    def shape(q: Tensor) -> Tensor:
        out = moved_points(own[lone].to(q.dtype), mine[lone], screws.to(q.dtype), q)
        if len(used):
            bent = moved_points(inner[0].to(q.dtype), inner[1], screws.to(q.dtype), q)
            out = torch.cat([out, mix.to(q.dtype) @ bent], 1)[:, order]
        return out

    def slopes(q: Tensor) -> tuple[Tensor, Tensor]:
        out, ways = moved_points_and_slopes(own[lone].to(q.dtype), mine[lone], screws.to(q.dtype), q)
        if len(used):
            bent, bends = moved_points_and_slopes(inner[0].to(q.dtype), inner[1], screws.to(q.dtype), q)
            out = torch.cat([out, mix.to(q.dtype) @ bent], 1)[:, order]
            bends = (mix.to(q.dtype) @ bends.flatten(2)).unflatten(2, bends.shape[2:])
            ways = torch.cat([ways, bends], 1)[:, order]
        return out, ways

    return Body(
        shape=shape, slopes=slopes, mass=torch.from_numpy(weighed.mass), coordinates=twists.shape[1],
        reach=None if reach is None else torch.from_numpy(reach),
    )  # fmt: skip


def fit(
    mesh: Mesh,
    poses: Float64[np.ndarray, "t v 3"],
    plan: FitPlan | None = None,
    *,
    density: float = 1000.0,
    tell: Callable[[int, float], None] | None = None,
) -> Fitted:
    """Learn from poses of the mesh's vertices in any order; one in eight is held out to judge by. ``tell`` hears of each coordinate the error."""
    plan = plan or FitPlan()
    checked(mesh)
    if poses.ndim != 3 or poses.shape[1:] != mesh.vertices.shape:
        raise ValueError(f"poses are [t,{len(mesh.vertices)},3] for this mesh, got {list(poses.shape)}: its topology must not change")  # fmt: skip
    if len(poses) < 16:
        raise ValueError(f"one object is learned from at least 16 poses, got {len(poses)}")
    if not np.isfinite(poses).all():
        raise ValueError("poses have vertices that are no numbers")
    piece = pieces(mesh, poses)
    if (seen := afloat(mesh, poses, piece)) is not None:
        return _of_whole(mesh, seen, piece, plan, density, tell)
    return _fit(mesh, poses, piece, plan, density, tell)


def _fit(mesh: Mesh, poses: np.ndarray, piece: np.ndarray, plan: FitPlan, density: float, tell: Callable[[int, float], None] | None) -> Fitted:  # fmt: skip
    """Of what does not move as a whole, or is seen by what does."""
    middle, scale = mesh.vertices.mean(axis=0), mesh.size
    held = np.arange(len(poses)) % 8 == 7
    if float(np.linalg.norm(poses - mesh.vertices, axis=2).max()) < EXACT * scale:
        raise ValueError("the poses are all the same: nothing moves")
    if (np.bincount(piece) == 1).any():
        unit = lambda x: (x - middle) / scale  # noqa: E731
        found = bent(unit(mesh.vertices), unit(poses), held, mesh.faces, piece, most=plan.most, shifts=plan.bends, error=plan.error)  # fmt: skip
        for k, e in enumerate(found.errors, 1):
            if tell is not None:
                tell(k, e)
        spread = found.q.square().mean(0).sqrt().clamp(min=1e-9)
        seen = found.q / spread
        return _fitted(mesh, found.piece, found.twists * spread[:, None], seen[held], seen, found.errors, plan, density, bends=True)  # fmt: skip
    rng = np.random.default_rng(plan.seed)
    some = rng.permutation(np.flatnonzero(~held))[:POSES]
    at = _chosen(piece, rng)
    unit = lambda x: torch.from_numpy((x - middle) / scale)  # noqa: E731
    task = Task(rest=unit(mesh.vertices[at]), goals=unit(poses[some][:, at]), piece=torch.from_numpy(piece[at]), count=int(piece.max()) + 1)  # fmt: skip
    judge = Task(rest=unit(mesh.vertices), goals=unit(poses[held]), piece=torch.from_numpy(piece), count=task.count)
    twists, q = torch.zeros(task.count, 0, 6, dtype=torch.float64), torch.zeros(len(some), 0, dtype=torch.float64)
    errors: list[float] = []
    if (found := joints(task, plan.most)) is not None:
        twists, q = found
        for k in range(1, q.shape[1] + 1):
            errors.append(judge.error(twists[:, :k], judge.solved(twists[:, :k])))
            if tell is not None:
                tell(k, errors[-1])
    while len(errors) < plan.most and not (errors and errors[-1] < EXACT):
        found = one_more(task, twists, q)
        now = judge.error(found[0], judge.solved(found[0]))
        if errors and now > 0.97 * errors[-1]:  # one more is no help any more
            break
        (twists, q), errors = found, [*errors, now]
        if tell is not None:
            tell(len(errors), now)
    spread = q.square().mean(0).sqrt().clamp(min=1e-9)
    twists = twists * spread[None, :, None]
    own = judge.solved(twists)
    return _fitted(mesh, piece, twists, own, torch.cat([own, q / spread]), errors, plan, density, bends=False)


def afloat(mesh: Mesh, poses: Float64[np.ndarray, "t v 3"], piece: Int64[np.ndarray, " v"]) -> Float64[np.ndarray, "t v 3"] | None:  # fmt: skip
    """Poses as the largest piece sees them (what bends: as it moves on average), of an object that moves as a whole; None of one of which something stands still, or that is
    on joints with what does."""
    far = np.linalg.norm(poses - mesh.vertices, axis=2).max(axis=0)
    count = np.bincount(piece)
    stiff = count[piece] > 1
    if far.min() < (RIGID if stiff.all() else TIED) * mesh.size or (stiff.any() and _on_the_world(mesh, poses, piece, stiff)):  # fmt: skip
        return None
    label = np.where(stiff, piece, count.size)  # all that bends together
    area = np.zeros(count.size + 1)
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    np.add.at(area, label[mesh.faces[:, 0]], np.linalg.norm(np.cross(b - a, c - a), axis=1))
    mine = label == area.argmax()
    turn, shift = nearest_motion(mesh.vertices[mine], poses[:, mine])
    return (poses - shift[:, None]) @ turn


def _on_the_world(mesh: Mesh, poses: np.ndarray, piece: np.ndarray, stiff: np.ndarray) -> bool:
    """Whether one joint each hangs the pieces that keep their form on each other and one on what is not in the mesh, as a door without its frame."""
    own = torch.from_numpy(np.unique(piece[stiff], return_inverse=True)[1])
    middle, scale = mesh.vertices.mean(axis=0), mesh.size
    unit = lambda x: torch.from_numpy((x - middle) / scale)  # noqa: E731
    count = int(own.max()) + 1
    task = Task(rest=unit(mesh.vertices[stiff]), goals=unit(poses[:, stiff]), piece=own, count=count)
    return joints(with_world(task), count) is not None


def _of_whole(mesh: Mesh, seen: np.ndarray, piece: np.ndarray, plan: FitPlan, density: float, tell: Callable[[int, float], None] | None) -> Fitted:  # fmt: skip
    """Of an object that moves as a whole, what it does beside that."""
    also = "it moves as a whole, too, which is not among its coordinates: simulate it with --free"
    if float(np.linalg.norm(seen - mesh.vertices, axis=2).max()) > RIGID * mesh.size:
        found = _fit(mesh, seen, piece, plan, density, tell)
        return replace(found, freedom=replace(found.freedom, why=f"{found.freedom.why}; {also}"))
    count = int(parts(mesh).max()) + 1
    return solid_as_one(mesh, density, f"{'it keeps its form' if count == 1 else f'its {count} parts move as one'}; {also}")  # fmt: skip


def solid_as_one(mesh: Mesh, density: float, why: str) -> Fitted:
    """An object without coordinates of its own."""
    return Fitted(
        mesh=mesh, weighed=quadrature(mesh, density=density), piece=np.zeros(len(mesh.vertices), np.int64), twists=np.zeros((1, 0, 6)), reach=np.zeros((0, 2)),
        errors=np.zeros(0), freedom=Freedom(count=0, errors=(), ratios=(), why=why),
    )  # fmt: skip


def _fitted(
    mesh: Mesh, piece: np.ndarray, twists: Tensor, own: Tensor, seen: Tensor, errors: list[float], plan: FitPlan, density: float, *, bends: bool
) -> Fitted:  # fmt: skip
    """In metres; coordinates of poses that were held out, and of all that tell how far coordinates reach."""
    middle, scale = mesh.vertices.mean(axis=0), mesh.size
    low, high = seen.amin(0), seen.amax(0)
    more = MARGIN * (high - low)
    metres = in_metres(twists, torch.from_numpy(middle), scale)
    weighed = quadrature(mesh, density=density)
    out = Fitted(
        mesh=mesh, weighed=weighed, piece=piece, twists=metres.numpy(), errors=np.array(errors),
        reach=torch.stack([low - more, high + more], 1).numpy(), freedom=Freedom(count=None, errors=(), ratios=(), why=""),
    )  # fmt: skip
    body = out.body()
    values = active_subspace(body.shape, own[:32], body.mass)
    return Fitted(**{**out.__dict__, "freedom": _found(errors, values, plan, bends=bends)})


def pieces(mesh: Mesh, poses: Float64[np.ndarray, "t v 3"]) -> Int64[np.ndarray, " v"]:
    """Which piece each vertex is of: a connected part that keeps its form in all poses is one, vertices of others are each their own."""
    label, out, count = parts(mesh), np.zeros(len(mesh.vertices), np.int64), 0
    for part in range(label.max() + 1):
        mine = np.flatnonzero(label == part)
        if rigid(mesh.vertices[mine], poses[:, mine]) < RIGID * mesh.size:
            out[mine], count = count, count + 1
        else:
            out[mine], count = count + np.arange(len(mine)), count + len(mine)
    return out


def rigid(rest: Float64[np.ndarray, "n 3"], poses: Float64[np.ndarray, "t n 3"]) -> float:
    """Largest distance (metres) of points from where one rigid motion per pose would have them (Kabsch)."""
    turn, shift = nearest_motion(rest, poses)
    return float(np.linalg.norm(rest @ turn.swapaxes(1, 2) + shift[:, None] - poses, axis=-1).max())


def _chosen(piece: Int64[np.ndarray, " v"], rng: np.random.Generator) -> Int64[np.ndarray, " n"]:
    """Vertices for the least squares: some of each piece."""
    out = []
    for one in np.unique(piece):
        mine = np.flatnonzero(piece == one)
        out.append(rng.permutation(mine)[:POINTS])
    return np.sort(np.concatenate(out))


def _found(errors: list[float], values: Subspace, plan: FitPlan, *, bends: bool) -> Freedom:
    """In words."""
    v = values.values
    ratios = tuple(float(a / b.clamp(min=1e-300)) for a, b in pairwise(v))
    k, last = len(errors), errors[-1]
    if last < EXACT:
        why = f"{k} coordinates reconstruct to {100 * last:.3g} % of the size: nothing is left to explain"
        return Freedom(count=k, errors=tuple(errors), ratios=ratios, why=why)
    short = "" if last < plan.error else f", not to {100 * plan.error:.2g} %"
    if not short or (bends and last < ROUGH):
        why = f"{k} coordinates reconstruct to {100 * last:.2g} % of the size{short}; it bends, and more of them would say more"
        return Freedom(count=None, errors=tuple(errors), ratios=ratios, why=why, bends=True)
    why = f"not minimal: {k} coordinates reconstruct to {100 * last:.2g} % of the size only, not to {100 * plan.error:.2g} %"
    return Freedom(count=None, errors=tuple(errors), ratios=ratios, why=why)
